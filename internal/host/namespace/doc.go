// SPDX-License-Identifier: Apache-2.0

// Package namespace is shared by rooms that work in Linux namespaces (namespaces(7)): it runs
// functions in a thread of a namespace, and handles the mounts that pin a namespace without a
// process, and sysctls.
//
// # Promises
//
//   - A function run by [InThread] affects no other goroutine, and its thread ends with it.
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
