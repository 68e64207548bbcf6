// SPDX-License-Identifier: Apache-2.0

// Package pod is the controller: the life of every pod sandbox and container, from the
// request to the last thing given back.
//
// # Two flows
//
// What people ask for (Run, Create, Start, Stop, Remove) is a call here that works on one
// [unit] and commits each step before the next outside effect. What happens by itself (a process
// ends) comes in as an [exit.Fact] from any witness, through [Controller.Exited], and
// goes down the unit's lane in two steps:
//
//	settle    vet, measure, OOM verdict, left-overs, bounded log drain, commit, tell      (settle.go)
//	release   task, stdio, network, netns, container, snapshot, sandbox, files            (release.go)
//
// Containers and sandboxes go the same way; a unit is either.
//
// # Promises
//
//   - An exit is durable and visible before any of its clean-up starts, and settled once.
//   - Readers (status, list) are served from memory, from the last durable status, and take
//     no lock that is held over I/O.
//   - What is made outside is in the unit's record before it is made (state.Hold), and struck
//     off after it was given back. A process is in it before it is started.
//   - Whatever the kernel watches and says to live is not EXITED, whoever claims so; what was
//     made for a start that failed is ended before that is told.
//   - What is ours and has no record all the same is reaped, each on a lane of its own (reap.go).
//   - A call retried by a client that did not get its answer joins the one in flight (join.go).
//   - After a restart, [Controller.Recover] brings records and the outside together by one
//     table (recover.go).
//
// # Never
//
// No containerd, no gRPC, no sockets: what is outside is behind the interfaces of ports.go.
//
// # To look at it live
//
// `berth debug lanes` shows the lanes that are not idle, `berth timeline ID` what happened
// to one unit.
package pod
