// SPDX-License-Identifier: Apache-2.0

// Package exit states what is known about the end of a process, and decides which statement stands
// when several witnesses make one.
//
// # Promises
//
//   - A [Fact] is immutable: it is copied, or merged into a new one, never changed in place.
//   - [Merge] is the only rule: a measured code replaces an unknown one, never the reverse; what the
//     process ended with replaces what its first thread ended with ([Rank]), never the reverse; of
//     two that are equally good the first stands; an instant, once known, stays.
//   - [Evidence] adds what berth itself did to the process: a start that was given up, and signals of
//     its own, which explain an end that the OOM killer would explain otherwise.
//   - Two measured codes that differ do not go unnoticed: [Evidence.Contradiction].
//   - No code is invented. What nobody measured is [CodeUnknown], and [Fact.Reason] says so.
//
// # Never
//
// The package has no clock, lock or I/O, and imports nothing but the standard library. It does not
// decide which witness to believe in the first place (the kernel rather than a shim that died, for
// instance): that is for the caller, package pod.
package exit
