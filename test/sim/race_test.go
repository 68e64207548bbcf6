// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

// The race detector makes everything some ten times slower.
func init() { rangeStep = 10 }
