// SPDX-License-Identifier: Apache-2.0

// Package pins makes the IPC and UTS namespaces of pods that no process holds. Each is pinned as a
// file, as package network pins network namespaces.
//
// # Layout
//
//	STATE/pins/ID/ipc, STATE/pins/ID/uts    the namespaces: mounts of nsfs
//	STATE/pins/ID/made                      which there are, and in which boot they were made
//
// # Promises
//
//   - The paths follow from the ID, and can be recorded before anything is made.
//   - The hostname and the sysctls are set before Make returns. The file made is written last:
//     Check succeeds only where everything was made, in this boot, and is still there.
//   - Make makes everything again, whatever an attempt before it has left. Removing what is absent
//     succeeds.
//   - No thread that was in another namespace is used for anything else.
//
// # Never
//
// The room knows no pods, only IDs and values, and keeps no state: the records say what may exist.
//
// # To look at it live
//
// `lsns -t ipc -t uts`, and `nsenter --uts=/run/berth/pins/ID/uts hostname`.
package pins
