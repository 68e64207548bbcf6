// SPDX-License-Identifier: Apache-2.0

// Package asynclog writes a log without ever waiting for its reader.
//
// A daemon's standard error is a pipe to journald, to a container runtime or to a person's
// terminal. When that reader stalls, a write(2) to a full pipe waits for as long as the reader
// does, and so does everything that logs. Here a record is formatted and put into a bounded queue;
// one goroutine writes the queue out, and it alone waits.
//
// # Promises
//
//   - Logging never blocks and never fails, even if the output does.
//   - The queue is bounded in records and in bytes. Records that do not fit are dropped and counted
//     ([Log.Dropped]); the next line that is written tells how many records are missing, at the
//     place where they are missing.
//   - Records come out in the order in which they were logged.
//   - [Log.Flush] and the end of [Log.Run] wait for the output no longer than their bounds.
//
// # What it never does
//
// It does not put back records that were dropped, and it does not filter or rewrite them.
//
// # Other people's output
//
// Libraries and child processes write to os.Stderr, too. [Log.CaptureStderr] replaces that variable
// by a pipe whose other end is read into the queue, so that they cannot be blocked either. The Go
// runtime still prints a crash to file descriptor 2.
//
// # Looking at it live
//
// The metric berth_log_dropped_total counts the records that were dropped.
package asynclog
