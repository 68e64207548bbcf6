// SPDX-License-Identifier: Apache-2.0

// Package pod is the controller: the life of every pod sandbox and container, from the request
// until everything that was made for it is released.
//
// # Two halves
//
// Each request of a client is a method of [Controller], in controller.go and query.go. It works on
// one [unit], a sandbox or a container, and commits each step before the next effect outside:
//
//	run.go create.go start.go update.go stop.go remove.go shutdown.go
//
// Work that berth begins by itself starts with a fact from any witness, or with a comparison of the
// records with the outside, and goes down the lane of the unit:
//
//	observe.go    a witness reports that a process ended
//	settle.go     measure, OOM verdict, leftovers, commit, drain the log, publish
//	givenup.go    end the remains of a start that was given up, before its settle
//	teardown.go   release task, stdio, network, namespace, container, snapshot, files
//	hung.go       remove a task whose shared shim hangs
//	gap.go        let the shim publish an end before the task is deleted
//	endings.go    notify the hooks (NRI plug-ins) of the exit, on a lane of its own
//	attempt.go    how far a start has come, and whether it is taken back. Pure
//	decide.go     choose the action for a record and the state outside. Pure
//	recover.go    restore the records at boot; compare them with containerd
//	audit.go      look for ends that no witness reported
//	orphans.go    remove objects that berth made and has no record of
//
// Each of these is a type that holds only its own dependencies; wire.go puts them together. A
// method is in the file of its type.
//
// # Shared types
//
//	unit.go members.go units.go registry.go  sandboxes and containers, made and found
//	record.go underway.go live.go            the durable, in-flight and running part of one
//	evidence.go oomverdict.go stops.go       the evidence about the end of one
//	told.go                                  a process told to end, and the reason why it has not
//	inflight.go operations.go gate.go        calls in flight, and work that outlives its caller
//	lanes.go                                 when something happens
//	processes.go oom.go oomwatch.go group.go the kernel: processes and OOM kills
//	launch.go restore.go                     the two roads of a start: a new task, or a checkpoint
//	readiness.go detours.go                  the obstacles of a start, and its detours
//	workload.go pinned.go maketask.go        tasks, and the sandboxes of pods
//	output.go                                stdio
//	specs.go devices.go imagevolumes.go pause.go userns.go netpod.go signal.go request.go    requests
//	queued.go applied.go                     resources that are asked for, and in effect
//	status.go describe.go publish.go         answers and events
//	damaged.go                               records that cannot be read
//	target.go hooks.go                       the view of other rooms
//	ports.go config.go errors.go             interfaces to the outside, settings, kinds of errors
//
// # Promises
//
//   - An exit is durable and visible before any of its release starts, and settled exactly once.
//   - Readers (status, list) are served from memory, from the last durable status, and take no lock
//     that is held over I/O.
//   - Each thing outside is in the unit's record before it is made (state.Hold), and struck off
//     after it was released. A process is on record before it is started. The restore of one from a
//     checkpoint is on record before the shim is asked for it.
//   - A unit whose process the kernel watches and reports as alive is not EXITED, even if a shim or
//     containerd reports its end. The remains of a failed start are ended before EXITED is
//     published.
//   - A call that a client repeats because it did not get its answer joins the one in flight.
//   - A wait for the end of a process that was killed insists every few seconds, and reports the
//     cause of the delay. An attempt of a lane waits for seconds; only an answer may take longer.
//   - A removal is on record before it can hang, and goes on without its caller.
//   - berth serves from the records, before containerd has answered anything. A call that depends
//     on unknown state, such as the start of a container whose earlier start may have been cut off,
//     waits.
//   - A panic in an operation ends that operation with an error. A panic anywhere else ends the
//     process, with its stack.
//
// # Views for other rooms
//
// [Controller.Target] describes a sandbox or container to the rooms that work on one: stream, stats
// and checkpoint. [Hooks] are the places where NRI plug-ins take part, and [Devices] adds the CDI
// devices that a container requests by name.
//
// # Never
//
// The package does not know containerd or gRPC, and does not mount or open sockets: everything
// outside is behind the interfaces of ports.go.
//
// # To look at it live
//
// `berth debug lanes` shows the lanes that are not idle, `berth timeline ID` the events of one
// unit.
package pod
