// SPDX-License-Identifier: Apache-2.0

// Package exit states what is known about the end of a process, and decides
// which statement stands when several witnesses speak.
//
// # Promises
//
//   - A [Fact] is immutable: it is copied, merged into a new one, never edited in place
//     by two hands.
//   - [Merge] is the only rule: a measured code replaces a guess, never the reverse; the
//     first measured code stands; an instant, once set, stays.
//   - No code is invented. What nobody measured is [CodeUnknown], and [Fact.Reason] says so.
//
// # Never
//
// No clock, no lock, no I/O, nothing but the standard library. Who is believed before a
// fact is offered (a shim's word while the kernel says that the process still lives, say)
// is for the caller: package pod.
package exit
