// SPDX-License-Identifier: Apache-2.0

// Package adoption takes over the pods of containerd's CRI plug-in while they run, and gives them
// back. It is what `berth adopt` does, beside a containerd that serves and a berth that does not.
// What is to become of a pod, and in which order, is decided by package adopt, which is pure. This
// package finds out what there is, and has the effects.
//
//	adoption.go   the call: the records are locked, containerd is reached, and pods go one way
//	look.go       what there is of the plug-in's pods
//	take.go       the way to berth
//	give.go       the way back
//	records.go    whose each pod is, on record
//	outputs.go    the pipes of containers, which are held open while they have no reader
//	ends.go       how containers end while the plug-in is turned off
//	processes.go  what the kernel says of processes
//	commands.go   the operator's commands, and the waiting for containerd after them
//
// # Promises
//
//   - berth does not serve meanwhile: the records are locked.
//   - A dry run changes nothing, and makes no records.
//   - What is cut off anywhere is gone on with by the next call, in either direction.
//   - While a command of the operator's restarts containerd, no exit code is lost, no stdin ends, and
//     what a container writes waits in its pipes.
//   - Nothing is changed where the plan refuses something. Pods that the operator lets end, and that
//     cannot be adopted, have ended before anything else is changed.
//
// # Never
//
// The package does not read the plug-in's formats, which adopt and ctrd do, and it does not ask for
// a pod of another berth.
//
// # To look at it live
//
// berth adopt says what each step took. berth adopt --dry-run says what would become of each pod.
package adoption
