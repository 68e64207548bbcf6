// SPDX-License-Identifier: Apache-2.0

// Package migrate moves a node whose kubelet uses containerd's CRI plug-in or CRI-O to berth, and
// back: berth migrate.
//
// # Promises
//
//   - A plan changes nothing. It says what the settings of the old runtime become. What has no
//     counterpart is named with what that means for the pods, and so is a setting that this berth
//     does not know. Only what is the default, or means nothing to pods, is left out.
//   - What stands in the way of a migration is named, and then nothing is applied.
//   - Before each step of an apply the journal says what is about to be done and what was there,
//     and the original of a file is beside it. So a process that is killed at any instruction
//     leaves a node that Undo takes back, byte by byte.
//   - A step that fails, and a runtime or a kubelet that is not ready in time, takes everything
//     back by itself.
//   - A file is there whole, in its old or its new version. A file that somebody changed after it
//     was written here is kept beside the journal before Undo puts the original there.
//   - No pod is ended unless that was allowed.
//
// # Never
//
// It drains nothing, since it has no access to the cluster, and moves no pod: pods of the old
// runtime are ended there, and made again by the kubelet. It touches no image and no record of
// either runtime, and does not write to a cluster: what is to be changed there it says.
//
// # Use
//
// [Make] reads a node and makes a plan. [Apply] carries a plan out, and [Undo] takes it back; both
// ask and change the node's units and pods through a [Host].
//
// # Files
//
// containerd.go and crio.go turn the settings of the old runtime into berth's, without looking at
// the node; tree.go, settings.go and registries.go are what both need. kubelet.go has what the
// kubelet is told and where, node.go reads a node, plan.go makes the steps, journal.go is what is
// on record, and apply.go carries the steps out and takes them back.
package migrate
