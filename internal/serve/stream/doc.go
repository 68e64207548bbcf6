// SPDX-License-Identifier: Apache-2.0

// Package stream runs commands in containers that run, and connects clients with them: ExecSync,
// Exec, Attach and PortForward of CRI. It knows a container only by its [pod.Target], and changes
// neither its record nor its state.
//
// # An exec process
//
// An exec process is one more process of a container's task. Its specification is the process of
// the container's stored OCI specification (user, groups, capabilities, limits, environment,
// working directory, labels) with other arguments. Its key is the ID of the container and an ID of
// its own, which is random, so that no two processes ever have the same.
//
// Its directory, Config.Dir/CONTAINER.EXEC, is made before the process is, and removed after
// containerd has deleted the process. So the directories list the processes that may exist outside
// berth. The next berth ends those that it finds, because their callers are gone.
//
//	make directory and FIFOs → create → start → wait → delete → remove directory
//	                                      |
//	      abandoned by its caller: kill --+   (again and again, until the process has ended)
//
// If the handler's setting allows it, a process of ExecSync is made without the shim: package join
// forks it, berth is its parent, and its output comes through pipes. Its directory has a note of
// which process it is, from before it executes the program. If it cannot be made this way for any
// reason, the shim makes it.
//
// One goroutine for each process goes through these steps. It does not use the context of the call
// that asked for the process, so that a client that vanishes leaves no step half done.
//
// # Promises
//
//   - An exec process ends with its container, with its timeout, with its client and with berth.
//     The processes of a killed berth are ended by the next one. A step that fails is repeated,
//     after five minutes at the latest, until it succeeds.
//   - ExecSync returns within a second of its timeout, even if the output is held open.
//   - An exit code is the one that the shim measured. If there is none, the call is an error.
//   - ExecSync keeps less than 16 MiB of output, both streams together, so that the answer fits
//     into the message that the kubelet takes. Further output is read and dropped, so that the
//     process does not block, and the standard error records how much that was.
//   - The output of a process from before its end is read completely. If another process holds its
//     output open, reading goes on until a second has passed without a byte, or ten seconds with
//     some.
//   - newShares lists the resources that pods share: processes, attached clients, streams and their
//     URLs, forwarded connections, and memory for output. Each pod has a share and a guaranteed
//     part, and a refusal is ErrResourceExhausted and names the pod. A shim that does not answer
//     costs no more than that. ExecSync, exec and attach, and port-forward have nothing in common,
//     so probes that hang and port-forwards that are forgotten leave a person room to find out why.
//   - A port-forward stays as long as its client does. When a pod has its share of them, or all
//     pods have all, the one on which nothing has come or gone for longest, and for a minute at
//     least, makes room for the next.
//   - Nothing is kept of a request whose first line has no good URL, and 128 clients at most may be
//     connected that have not sent one. The headers of a request have 16 KiB at most.
//   - Input is passed on while it comes: a message or a frame of any length takes 16 KiB, and the
//     client waits while the process does not read. Over SPDY, up to 1 MiB of it waits in memory.
//   - Nothing is left of a client that vanishes or does not keep to the protocol: no connection, no
//     stream and no goroutine. A call of which the client has not opened the streams within 30
//     seconds ends.
//   - A connection is closed once its client has the end of its stream, and has closed it: see
//     parting.go. One whose client takes nothing for a minute, does not close it within a minute,
//     or takes longer than an hour, is closed all the same, and so is the slowest of more than 256.
//     The place of the stream is given back before that.
//   - A client of exec or attach that reads is told how its call has ended, even if berth is
//     stopped. Only a berth that is killed leaves a client without an answer, which kubectl takes
//     for success.
//   - A forwarded connection ends when the pod closes it, or when the client has closed its half
//     and the pod has sent nothing for five minutes, which is an error.
//
// # Never
//
// This package never waits in a step of the life of a container, and no such step waits for it.
//
// # To look at it live
//
// The directories below Config.Dir (exec below berth's state directory) are the processes that
// there are.
package stream
