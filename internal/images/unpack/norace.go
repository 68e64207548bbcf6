// SPDX-License-Identifier: Apache-2.0

//go:build !race

package unpack

// overhead is 1: each byte of memory is the program's own.
const overhead = 1

// environment is all that the process is given.
var environment = alone
