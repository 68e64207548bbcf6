// SPDX-License-Identifier: Apache-2.0

// Package logs carries a container's output from its pipes to its CRI log file. Not a byte is lost
// or written twice when berth is killed, whenever that happens.
//
// # Where the output comes from
//
// With a runtime whose shim can start a program to log to (io.containerd.runc.v2), the output comes
// through the container's own pipes. The shim starts berth-logger (logger/logger.c) with their read
// ends. It copies nothing: it keeps the pipes open and gives a duplicate of them to each berth that
// comes. So output written while berth is away waits in the pipe, up to 256 KiB, and then the
// container waits; it stays there even if the container ends meanwhile. Once the container's
// processes are dead and the pipe is empty, its log is complete, even though the shim holds the
// pipe open until the task is deleted. A terminal's output is copied into the pipe by the shim.
//
// Other shims, and the shim of a container with stdin and without a terminal, copy the output into
// a FIFO, of which they hold both ends. Output written while berth is away waits in the FIFO. If
// the container ends meanwhile, the shim closes both ends and the kernel drops the content. berth
// cannot know how much that was, and reports that output may be missing.
//
// # From the pipe to the log
//
// Output that berth has taken from the pipe and not yet put into the log must survive berth. So the
// bytes never pass through memory alone: splice(2) moves them from the pipe to the end of a spool
// file within one system call, and the length of the spool shows afterwards how many were moved.
// From the spool they are formatted into the log. The cursor, a file that is written in one call,
// records how much of the spool is in the log, the inode of the log, and the length of the log at
// that time.
//
// The steps of a round, and the work that the next berth finds after a kill at each of them:
//
//	1  splice pipe → spool                  the spool's rest is formatted by the next berth
//	2  pwrite lines → log at length L       the log is cut back to L, then as after 1
//	3  pwrite cursor {log, L', consumed}    nothing is left to do
//	4  punch a hole into the spool          nothing: the pages before consumed are given back
//
// An unfinished line stays in the spool until it ends, is longer than MaxLine, or is the last of
// its stream; it is then written as a part (tag P).
//
// Before a round of step 2, the log is compared with the cursor: if another program has changed its
// length, the cursor follows first. If a log is truncated between that and the write, it has a hole
// for that moment; the hole is noticed after the write, and the lines are written to the beginning.
// O_APPEND would leave no such moment, and was tried: a write that hung on a frozen disk was then
// carried out after the next berth had written the same lines, and they stood there twice. At its
// place it changes nothing.
//
// Two goroutines (pumps) move stdout and stderr. They take turns at the log and the cursor. A round
// begins as soon as there is output. If a few small rounds have followed each other within a
// millisecond, the pump first waits for a millisecond, so that a container that writes line by line
// does not cause a round for each line. A flush, and so the end of the container, does not wait for
// that.
//
// # Promises
//
//   - Every byte is in the log exactly once, regardless of which process is killed. There are three
//     exceptions: if the log file was moved away between a kill and the restart, the lines of the
//     last round may stand in the old and in the new file; the same round may be torn or doubled if
//     another program changed the log in the very moment in which it was written, and berth was
//     killed right after; and if berth-logger itself is killed while berth is away, or a FIFO is
//     dropped as described above, output is lost, and that is reported.
//   - A berth-logger that is killed while berth is there has a successor before berth can be gone,
//     and the container notices nothing (logger.go). If it is killed while berth is away, the next
//     berth starts a successor: it finds the pipe and its content through the processes that write
//     to it.
//   - A log that another program truncates goes on at its end, and not behind a hole, and one that
//     is deleted is made anew with the next line. Each is reported, once a minute at most. The log
//     is berth's to write: lines that another program appends to it may be overwritten.
//   - A log that cannot be written (its disk is full, frozen or broken, its path is refused) makes
//     this container's output wait, and nothing else. The same holds for a runtime directory
//     without room. Nothing is dropped; it is tried again, after five seconds at the latest.
//   - Open, Started, Close, Run after Close, and Remove never wait for the log's disk. Create waits
//     for two seconds at most; Reopen, Flush and Drain wait within their context. A system call
//     that a frozen disk does not answer keeps one goroutine per container, and a process with such
//     a goroutine cannot die until the disk answers, not even by SIGKILL.
//   - The spool of a stream takes no more of the runtime directory than one round moves (256 KiB),
//     an unfinished line, and the part that holes cannot give back (64 KiB); when everything is
//     logged it takes one page. Further output waits in the pipe.
//   - Nothing below the pod's log directory is trusted: a symbolic link anywhere in the log's path,
//     a hard link, and every file that is not regular are refused, at create, at reopen and after a
//     restart.
//   - A tee (Attachment.Tee) reads along behind the spool. One that is slow loses the oldest
//     output; the container and the log do not wait for it. All tees of a container read the same
//     ring, of the newest 1 MiB, or of the newest 16,384 changes between stdout and stderr if that
//     is less. So all of them together cost 1.5 MiB at most, regardless of the output and of slow
//     readers.
//   - Lines are in the CRI log format: time, stream, tag (F for a full line, P for a part), text.
//
// This package never decides that output is not wanted any more: only its caller does, by calling
// Remove.
//
// # To look at it live
//
// Dir (io/ID below berth's state directory) holds stdout.spool, stderr.spool, cursor, and the FIFOs
// or the logger's socket. `berth timeline ID` shows output that waits, and the reason.
package logs
