// SPDX-License-Identifier: Apache-2.0

// Package network makes network namespaces and plumbs them with CNI.
//
// # Promises
//
//   - A namespace is pinned at a path that is known, and can be recorded, before it is made
//     ([Network.PathFor]). Making what exists and removing what is absent succeed.
//   - Teardown uses the configuration that Setup used, even if the directory changed since, and works
//     when the namespace is gone.
//   - The configuration directory is followed while berth runs; the lexically first valid configuration
//     wins; an invalid file is skipped and said in the log. Where there is none, a
//     bridge of berth's own serves, and the log says so. Its pods share one rule that masquerades.
//
// # Never
//
// It knows no pods beyond their names, keeps no record of who has which namespace, and runs no
// shell: what a pod says reaches plug-ins as CNI arguments only.
//
// # To look at it live
//
// `ip netns` (pins are under /run/netns by default), `berth status -o json`.
package network
