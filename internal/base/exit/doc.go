// SPDX-License-Identifier: Apache-2.0

// Package exit holds the facts about the end of a process, and decides which one stands if several
// witnesses report one.
//
// # Promises
//
//   - A [Fact] is immutable: it is copied, or merged into a new one, never changed in place.
//   - [Merge] is the only rule: a measured code replaces an unknown one, never the reverse; the
//     code of the process replaces that of its first thread ([Rank]), never the reverse; of two
//     that are equally good the first stands; an instant, once known, stays.
//   - [Evidence] adds berth's own actions on the process: a start that was given up, and signals,
//     which explain an end that the OOM killer would explain otherwise.
//   - Two measured codes that differ do not go unnoticed: [Evidence.Contradiction].
//   - No code is invented. A code that was not measured is [CodeUnknown], and [Fact.Reason]
//     reflects that.
//
// # Never
//
// The package has no clock, lock or I/O, and imports nothing but the standard library. It does not
// decide which witness to believe in the first place (the kernel rather than a shim that died, for
// instance): that is for the caller, package pod.
package exit
