// SPDX-License-Identifier: Apache-2.0

// Package journal writes berth's log to the systemd journal with fields beside the text, so that
// `journalctl POD=web` finds what is about a pod.
//
// # Use
//
//	out := journal.New(stderr, journal.Socket)
//	log := asynclog.New(out, out.Handler(handler))
//	log.LogAttrs(journal.With(ctx, journal.Fields{Pod: "web"}), ...)
//
// # Promises
//
//   - The text of a record (MESSAGE) is the one that the handler would have written to standard error.
//
//   - Nothing waits for the journal but [Output.Write], which package asynclog calls in a goroutine of
//     its own.
//
//   - If journald is absent, or takes nothing for a second, records go to standard error as they would
//     have without this package, and a line there says so, once. It is tried again after a while.
//
//   - A record that is too large for journald loses the end of its longest field, which is marked.
//
//   - What reaches the log without a handler (lines of other programs) goes to standard error as it is.
//
//     handler.go  records with their fields, one behind the other
//     output.go   the native protocol of journald
package journal
