// SPDX-License-Identifier: Apache-2.0

// Package logs carries a container's output from its FIFOs to its CRI log file, across the death
// of berth, without a byte lost or doubled.
//
// The shim holds both ends of each FIFO, so that what the container writes while berth is away
// waits in the pipe. The danger is what berth has taken from the pipe and not yet put into the log when it
// is killed. So the bytes never pass through memory alone: splice(2) moves them from the pipe into a spool
// file within one system call, and the spool's size tells afterwards how much was moved. From the spool
// they are formatted into the log, and a cursor, written in one call, says how far the spool was
// consumed and how long the log was then.
//
// One round, under the container's log lock, and what a kill after each step leaves:
//
//	1  pwrite cursor {log length L, consumed k}    nothing moved: the next berth reads on
//	2  splice FIFO → spool                         spool longer than k: formatted again
//	3  pwrite lines → log at L                     log longer than L: cut back to L, formatted again
//	4  pwrite cursor {L', k'}                      done
//	5  when all is consumed: truncate spool        spool shorter than k': k is 0
//	6  pwrite cursor {L', 0}                       as before 1
//
// An unterminated line stays in the spool until it ends, is longer than MaxLine, or the output ends.
//
// # Promises
//
//   - As above. Only when a log was moved away between a kill and the restart can the last round's lines
//     stand in both files: doubled rather than lost.
//   - A log that cannot be written (disk full, disk hanging) blocks this container's output alone, through the
//     pipe; nothing is dropped, it is tried again.
//   - Lines are in the CRI log format: time, stream, tag (F for a full line, P for a part), text.
//   - A log path whose last part is a symbolic link, or no regular file, is refused.
//
// # To look at it live
//
// The spool directory holds stdout.spool, stderr.spool, cursor and the FIFOs.
package logs
