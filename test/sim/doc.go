// SPDX-License-Identifier: Apache-2.0

// Package sim runs the whole of berth in one process and in virtual time: its CRI service, controller, lanes, state on
// a real database, feed and containerd adapter, between a fake containerd, kernel, network and disk.
//
// # What stands for what
//
//   - [World] is everything outside: processes, shims, containerd, network namespaces, CNI results, cgroups. It
//     outlives any berth, and any berth may be killed between any two of its effects.
//   - [Berth] is one life of berth, from its start to its death.
//   - [Script] plays a story from a file under testdata; its verbs are listed there.
//   - [Watch] sees everything that berth tells anybody, and reports each broken promise.
//
// # Promises
//
//   - Time is testing/synctest's: no story takes longer for its waits, and nothing is asserted about real time.
//   - A random schedule prints its seed when it fails. The seed fixes what is done and when; how goroutines interleave
//     within one instant is up to Go's scheduler, so that a failure may need several runs to come again.
//
// # Not here
//
// Files that berth makes for pods are real, under a temporary directory; mounts are left out (pods share the host's IPC
// namespace). Real kernels, shims and runtimes are the business of test/e2e and test/fault.
package sim
