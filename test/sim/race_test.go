// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

// The race detector makes everything some ten times slower: `make test` plays the many without it.
func init() { manySchedules = 300 }
