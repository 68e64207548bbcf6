// SPDX-License-Identifier: Apache-2.0

// Package pod is the controller: the life of every pod sandbox and container, from the request
// until everything that was made for it is released.
//
// # Two halves
//
// What a client asks for is a method of [Controller]. It works on one [unit], a sandbox or a
// container, and commits each step before the next effect outside:
//
//	run.go  create.go  start.go  update.go  stop.go  remove.go  query.go
//
// What happens by itself begins with a fact from any witness, or with a comparison of the records
// with the outside, and goes down the lane of the unit:
//
//	observe.go    a witness reports that a process ended
//	settle.go     measure, OOM verdict, leftovers, commit, drain the log, publish
//	teardown.go   release task, stdio, network, namespace, container, snapshot, files
//	endings.go    notify the hooks (NRI plug-ins) of the exit, on a lane of its own
//	decide.go     what follows from a record and what is observed outside. Pure
//	recover.go    restore the records at boot; compare them with containerd
//	audit.go      look for ends that no witness reported
//	orphans.go    remove what berth made and has no record
//
// Each of these is a type that holds what it uses and nothing else; controller.go puts them
// together. They share a few that own state: the registry of units, the calls in flight, the
// operations that outlive their callers, the processes (what the kernel says), the output (stdio),
// the lanes.
//
// # Promises
//
//   - An exit is durable and visible before any of its release starts, and settled exactly once.
//   - Readers (status, list) are served from memory, from the last durable status, and take no lock
//     that is held over I/O.
//   - What is made outside is in the unit's record before it is made (state.Hold), and struck off
//     after it was released. A process is on record before it is started. The restore of one from a
//     checkpoint is on record before the shim is asked for it.
//   - What the kernel watches and says to be alive is not EXITED, whatever a shim or containerd
//     says. What was made for a start that failed is ended before EXITED is published.
//   - A call that a client repeats because it did not get its answer joins the one in flight.
//   - A removal is on record before it can hang, and goes on without its caller.
//   - berth serves from the records, before containerd has answered anything. A call that depends
//     on what is not known yet, the start of a container whose start may have been cut off, waits.
//   - A panic in an operation ends that operation with an error. A panic anywhere else ends the
//     process, with its stack.
//
// # What other rooms get
//
// [Controller.Target] describes a sandbox or container to the rooms that work on one: stream,
// stats and checkpoint. [Hooks] are the places where NRI plug-ins take part, and
// [Devices] adds what a container asks for by the name of a CDI device.
//
// # Never
//
// The package does not know containerd or gRPC, and does not mount or open sockets: what is outside
// is behind the interfaces of ports.go.
//
// # To look at it live
//
// `berth debug lanes` shows the lanes that are not idle, `berth timeline ID` what happened to one
// unit.
package pod
