// SPDX-License-Identifier: Apache-2.0

// Package pins makes the namespaces of pods that no process holds: [Networks] makes network
// namespaces, and the user namespaces that own them, and [Pins] makes IPC and UTS namespaces. Each
// is pinned as a file.
//
// # Layout
//
//	STATE/pins/ID/ipc, STATE/pins/ID/uts    the namespaces: mounts of nsfs
//	STATE/pins/ID/made                      which there are, and in which boot they were made
//	/run/netns/berth-OWNER-ID               the network namespace, where `ip netns` shows it
//
// # Promises
//
//   - The paths follow from the ID, and can be recorded before anything is made.
//   - A network namespace that exists is kept when it is made again. Its loopback is up.
//   - The hostname and the sysctls of these namespaces are set before Make returns. The file made
//     is written last: Check succeeds only where everything was made, in this boot, and is still
//     there.
//   - Make makes everything again, regardless of the remains of an earlier attempt. Removing an
//     absent namespace succeeds.
//   - No thread that was in another namespace is used for anything else.
//
// # Never
//
// The room does not know pods, only IDs and values, and keeps no state: the records list the
// namespaces that may exist.
//
// # To look at it live
//
// `lsns -t net -t ipc -t uts`, `ip netns`, and `nsenter --uts=/run/berth/pins/ID/uts hostname`.
package pins
