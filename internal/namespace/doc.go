// SPDX-License-Identifier: Apache-2.0

// Package namespace has what rooms that work in Linux namespaces (namespaces(7)) have in common: a
// thread to leave in one, and the mounts that keep one without a process.
//
// # Promises
//
//   - What [InThread] runs affects no other goroutine, and the thread ends with it.
//   - Removing an absent pin succeeds.
//
// # Never
//
// The package makes no namespace and no pin: the rooms that do have them on record before.
//
// # To look at it live
//
// lsns -T; findmnt -t nsfs.
package namespace
