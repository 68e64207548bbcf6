// SPDX-License-Identifier: Apache-2.0

//go:build race

package unpack

// overhead is how many bytes of memory the race detector has for each of the program's, and itself.
const overhead = 3

// environment also keeps the race detector from waiting for a second at the end of each process.
var environment = append([]string{"GORACE=atexit_sleep_ms=0"}, alone...)
