// SPDX-License-Identifier: Apache-2.0

// Package network makes network namespaces and connects them to networks with CNI.
//
// # Promises
//
//   - A namespace is pinned at a path that is known, and can be recorded, before it is made
//     ([Network.PathFor]). Making what exists and removing what is absent succeed.
//   - Teardown uses the configuration that Setup used, even if the directory changed since, and
//     works when the namespace is gone.
//   - The configuration directory is followed while berth runs, by polling where the kernel has no
//     inotify instance left. The lexically first valid configuration wins; an invalid file is
//     skipped and reported in the log. Where there is none, a bridge of berth's own is used, and
//     the log says so. Its pods share one rule that masquerades.
//
// # Never
//
// It knows nothing of pods beyond their names, keeps no record of who has which namespace, and runs
// no shell: what a pod says reaches plug-ins as CNI arguments only.
//
// # To look at it live
//
// `ip netns` (pins are in /run/netns by default), `berth status -o json`.
package network
