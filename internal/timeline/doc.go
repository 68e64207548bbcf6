// SPDX-License-Identifier: Apache-2.0

// Package timeline remembers what happened to each sandbox and container, for a person to read. It
// remembers it for a while after a removal too.
//
// # Promises
//
//   - Add does not block and does no I/O.
//   - Memory is bounded: so many IDs, so many entries for each, and so many bytes for each entry.
//     The beginning of a history stays, and of the rest what happened last.
//
// # Never
//
// Nothing is decided by what is here, and nothing of it survives a restart.
//
// # To look at it live
//
// berth timeline ID.
package timeline
