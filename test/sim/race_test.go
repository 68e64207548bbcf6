// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

// The race detector makes everything some ten times slower, and finds in one order what it finds in
// another. Every seed that found something is played all the same. None is played twice: with the
// race detector Go runs what is ready in a random order.
func init() { rangeStep, killStep, orders, repeated = 20, 4, 2, 0 }
