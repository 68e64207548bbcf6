// SPDX-License-Identifier: Apache-2.0

// Package migrate moves a node whose kubelet uses containerd's CRI plug-in or CRI-O to berth, and
// back: berth migrate.
//
// # Promises
//
//   - A plan changes nothing. It contains the translation of the old runtime's settings. A setting
//     without a counterpart is named with its effect on pods, and so is a setting that this berth
//     does not know. Only defaults, and settings without an effect on pods, are left out.
//   - Obstacles to a migration are named, and then nothing is applied.
//   - Before each step of an apply the journal records the action and the state before, and the
//     original of a file is beside it. So a process that is killed at any instruction leaves a node
//     that Undo takes back, byte by byte.
//   - A step that fails, and a runtime or a kubelet that is not ready in time, takes everything
//     back by itself.
//   - A file is there whole, in its old or its new version. A file that somebody changed after it
//     was written here is kept beside the journal before Undo puts the original there.
//   - No pod is ended unless that was allowed.
//
// # Never
//
// It drains nothing, because it has no access to the cluster, and moves no pod: pods of the old
// runtime are ended there, and made again by the kubelet. It touches no image and no record of
// either runtime, and does not write to a cluster: it prints the changes to be made there.
//
// # Use
//
// [Make] reads a node and makes a plan. [Apply] carries a plan out, and [Undo] takes it back; both
// ask and change the node's units and pods through a [Host].
//
// # Files
//
// containerd.toml and crio.toml list the settings of the old runtimes with their counterparts;
// docs/migrate.md shows the same tables, and tables.go reads them. containerd.go and crio.go
// translate what cannot be copied, without looking at the node; both need tree.go, settings.go and
// registries.go. kubelet.go reads the kubelet's settings, node.go reads a node, plan.go makes the
// steps, journal.go is the record, and apply.go carries the steps out and undoes them.
package migrate
