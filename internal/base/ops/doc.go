// SPDX-License-Identifier: Apache-2.0

// Package ops lists the operations that are under way: calls of clients, work that outlives them,
// steps of lanes, calls of plug-ins, and waits.
//
// # Use
//
//	ctx, op := list.Begin(ctx, ops.Work{Kind: ops.Stop, Of: ops.Object{ID: id}})
//	defer op.End()
//	...
//	ctx, part := ops.Begin(ctx, ops.Work{Kind: ops.Plugin, What: "CNI ADD of bridge"})
//	defer part.End()
//
// An operation begins where the work begins. Its context carries it to everything that the work
// calls, so a part, such as the call of a plug-in, belongs to its operation, concerns the same
// object, and was asked for by the same client. Functions that run a plug-in take the [Op] of the
// call, so that none can be run beside the list.
//
// # Files
//
//	ops.go    List, Op, and the beginning and the end of each
//	words.go  the list in sentences. Pure
//
// # Promises
//
//   - "Nothing is under way" is true if and only if the list is empty. A call that only reads is
//     listed once it has taken a second.
//   - Beginning and ending cost an entry of a map each, and never wait for anything but its lock.
//   - The list is bounded. Operations beyond its bound are counted.
//   - Ages are measured with the monotonic clock.
//
// # To look at it live
//
// `berth debug underway` shows the list, `berth why` the part of it that concerns one pod.
package ops
