// SPDX-License-Identifier: Apache-2.0

// Package cri is the gRPC surface of berth: it validates requests, calls the rooms that do the
// work, and turns their errors into gRPC codes. It is thin. The only state that it keeps is a cache
// of encoded list items (codec.go).
//
// # Promises
//
//   - Bad input is InvalidArgument and the error names the field; an absent object is NotFound; a
//     request that berth does not support is Unimplemented, with the reason. No other room chooses
//     a code.
//   - The streams of lists have the same items as the lists, in messages of a bounded size
//     (chunks.go).
//   - A caller with a deadline gets an answer a little before the deadline, so that the error
//     naming the cause of the delay still reaches the caller. Only RestorePod answers later: it
//     first removes the objects that it has made.
//   - When berth is asked to stop, no call fails and each stream ends once ([Server.Drain]),
//     provided that another process keeps the listener for the next berth.
//
// # Panics
//
// A panic in a handler ends its call alone, with code Internal, the stack in the log and a count in
// the metric berth_panics_total. That is safe because a handler only validates, translates and
// waits, and holds no lock that it does not release in a defer. Changes run in goroutines of the
// rooms below, whose panics end the process: see package daemon.
//
// Besides CRI v1 the sockets serve the services of api/berth/v1, which package nodeapi registers.
package cri
