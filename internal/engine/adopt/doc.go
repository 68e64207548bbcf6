// SPDX-License-Identifier: Apache-2.0

// Package adopt says what becomes of the pods of containerd's CRI plug-in when berth takes them over
// while they run, and what becomes of them on the way back. It is pure.
//
//	machine.go  who owns a pod, and the only mover
//	found.go    what the plug-in keeps: metadata, status files, and CNI's cached results
//	plan.go     from what was found to berth's records, and what would be lost, in sentences
//	back.go     from berth's records to the plug-in's files, and what the plug-in cannot have
//	request.go  what an operator asks for, and is told
//
// What has the effects is in other rooms: ctrd moves the objects of containerd, logs goes on with the
// output, and daemon has the flow.
//
// # Promises
//
//   - A pod has one owner. The owner is on record before anything is done in its name, and an
//     adoption, or its way back, can be cut off anywhere: both ways lead to a whole pod from there.
//   - What was found becomes records whole, or is refused in words before anything is changed.
//   - What a pod loses is in the plan, which is the dry run.
//
// # Never
//
// The package does not invent an exit code: what ended and has none is reported as unknown. It knows
// no containerd, no files and no clock.
//
// # To look at it live
//
// berth adopt --dry-run, and berth adopt --back --dry-run.
package adopt
