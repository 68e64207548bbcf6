// SPDX-License-Identifier: Apache-2.0

// Package namespace has what rooms that work in Linux namespaces (namespaces(7)) have in common: a
// thread to leave in one, the mounts that keep one without a process, and the sysctls of one.
//
// # Promises
//
//   - What [InThread] runs affects no other goroutine, and the thread ends with it.
//   - Removing an absent pin succeeds.
//   - A sysctl that was set without an error has been read back, after all that were set with it.
//
// # Never
//
// The package makes no namespace and no pin: the rooms that do have them on record before.
//
// # To look at it live
//
// lsns -T; findmnt -t nsfs.
package namespace
