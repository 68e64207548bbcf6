// SPDX-License-Identifier: Apache-2.0

// Package ctrd is the adapter to containerd: one client, one event subscription. It implements the
// small interfaces of package pod on containerd's services, and translates their errors to the
// sentinels of errdefs.
//
// # Promises
//
//   - [Containerd.Follow] keeps one subscription. When it breaks, it is made anew after 100 ms,
//     doubling to 1 s while containerd does not answer, and to 30 s while it answers and cannot be
//     compared with. Each time it subscribes first and then has the caller compare its records with
//     containerd's lists. It does not subscribe to events of other namespaces.
//   - Objects that it makes carry the label [connection.LabelOwner], and so do those that it lists,
//     except for tasks that have no container.
//   - A shim that does not answer delays only the calls to itself: [Containerd.Inventory] and
//     [Containerd.TaskState] are bounded, and no question waits for the answer of another shim.
//
// # Never
//
// It makes no decision about pods, and looks for no process itself: package shims does.
//
// # Looking at it live
//
//	ctr --address /run/berth/containerd/containerd.sock -n k8s.io containers ls
//
// # Files
//
// ctrd.go and events.go follow containerd. objects.go, tasks.go, exec.go, update.go, checkpoint.go,
// restore.go, sandboxer.go and podshim.go are the verbs, and inventory.go has the lists. groups.go
// chooses the pods that share a shim, and execs.go reaches their processes without it. calls.go
// bounds the calls to shims. left.go has package shims end the remains of a task. adopt.go moves
// pods between containerd's CRI plug-in and a berth. texts.go interprets the texts of other
// programs' errors.
package ctrd
