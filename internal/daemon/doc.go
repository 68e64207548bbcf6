// SPDX-License-Identifier: Apache-2.0

// Package daemon wires the rooms together and runs them: the order of start and stop, health, and
// what becomes of a panic.
//
// Each wing is a struct that the function which opens it makes complete, from wings that are complete
// already: the order is in the types (wings.go). The controller and the rooms that it calls need each
// other. These rooms are opened first and are given asked (history.go), which has the controller
// before anything runs. What runs is a table of parts in the order of life (parts.go).
//
// # Start
//
// The state is opened, and refused if another berth uses it. The CRI socket is taken or opened;
// calls wait in its backlog. The witnesses run, the records are restored, and then CRI is served
// and READY=1 reported. Nothing of that needs containerd, which is started or connected to beside
// it. CRI waits for it for a moment, since most often it is there by then, and is served without it
// after that.
//
// Until containerd is there Status says so, and calls that need it wait a little and are
// Unavailable with the reason. That holds for a containerd in this process that cannot be started,
// too: it is tried again, and what runs is watched meanwhile. Only a configuration that cannot work
// ends berth. Each time that berth is connected to containerd, the records are compared with what
// it has, in the background.
//
// What berth can do without for a while does not keep it from serving. A metrics port that somebody
// else uses, or a host without a free inotify instance, is logged and tried again.
//
// # Stop
//
// When the context ends, clients are asked to go to a new connection, the calls in flight get five
// seconds, and the streams end; everything below goes on until then. The service manager keeps the
// CRI socket, so that calls which are made meanwhile wait for the next berth instead of failing.
// Processes of pods go on, with their shims.
//
// # Panics
//
// A panic ends a call where nothing can be left half-done, and the process everywhere else:
// recovery after a crash is a path that is tested at every step, and going on with a lock that is
// held for ever is not.
//
//   - In a handler of a call or a stream it ends the call with code Internal: see package cri.
//   - Where libraries parse, decrypt or unpack what an image brings along it fails the pull, the import
//     or the unpacking with code Internal: see image.Contain. Goroutines that containerd's client starts
//     by itself are covered where they call handlers and appliers of berth's.
//   - In an attempt of a lane it fails the attempt, which is tried again: see package lane.
//   - In any other goroutine of berth it ends the process with exit code 2. The log has the stack,
//     and is flushed for a second at most.
//
// The metric berth_panics_total counts those that berth survives.
//
// # To look at it live
//
// If debug.socket is set, it serves goroutines, the heap, a CPU profile and the lanes (debug.go); if
// api.read_socket is, the methods of berth.v1 that change nothing (readers.go).
//
// # Output
//
// Nothing that berth writes is waited for: the log goes through package asynclog, and metrics and
// spans through package observe.
package daemon
