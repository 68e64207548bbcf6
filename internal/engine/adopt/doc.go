// SPDX-License-Identifier: Apache-2.0

// Package adopt plans how berth takes over the pods of containerd's CRI plug-in while they run, and
// the way back. It is pure.
//
//	machine.go  the owner of a pod, and the only mover
//	found.go    the plug-in's data: metadata, status files, and CNI's cached results
//	plan.go     from the data found to berth's records, and the losses, in sentences
//	back.go     from berth's records to the plug-in's files, and the pods that it cannot have
//	request.go  the operator's request, and the answers
//
// The effects are in other rooms: ctrd moves the objects of containerd, logs goes on with the
// output, and daemon has the flow.
//
// # Promises
//
//   - A pod has one owner. The owner is on record before anything is done in its name, and an
//     adoption, or its way back, can be cut off anywhere: both ways lead to a whole pod from there.
//   - A pod becomes complete records, or is refused with a reason before anything is changed.
//   - The losses of a pod are in the plan, which is the dry run.
//
// # Never
//
// The package does not invent an exit code: the end of a container without one is reported as
// unknown. It knows no containerd, no files and no clock.
//
// # To look at it live
//
// berth adopt --dry-run, and berth adopt --back --dry-run.
package adopt
