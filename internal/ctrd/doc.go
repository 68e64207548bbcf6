// SPDX-License-Identifier: Apache-2.0

// Package ctrd is the adapter to containerd: one client, one event subscription. It speaks containerd's
// services on one side and the small interfaces of packages pod and image on the other, and translates
// errors to errdefs' sentinels on the way.
//
// # Promises
//
//   - It cannot tell whether containerd runs in this process or behind a socket.
//   - [Containerd.Follow] keeps one subscription: when it breaks it is made anew after 100 ms, doubling to
//     30 s, reset by success; each time it subscribes first and then has the caller relist, so that
//     nothing falls between. Events of other namespaces are not asked for.
//   - What it makes carries the label [LabelOwner], and it lists nothing that does not.
//
// # Never
//
// It keeps no state about pods and decides nothing.
package ctrd
