// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads and ends control groups, v1 and v2: who is in one, how often
// the kernel killed in it for want of memory, and ends all that is left in it.
//
// # Promises
//
//   - A group is named by its directory, as [Of] found it for a process: no guessing of drivers
//     and slices.
//   - What is absent is empty: no processes, no kills, nothing to end.
//   - [KillAll] returns only when the group is seen empty, or when its context ends.
//
// # Never
//
// It makes and moves no group: that is the OCI runtime's. It removes only what a runtime that died left: [RemoveAll].
package cgroup
