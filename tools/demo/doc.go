// SPDX-License-Identifier: Apache-2.0

// Package demo shows berth at work: berth demo. It starts a second berth in a temporary directory,
// plays a pod whose containers end in different ways, prints how they ended and how long after the
// end of each process its exit was visible, and removes everything.
//
// # Promises
//
//   - It needs no network, no registry and no configuration: the image is in an archive that comes
//     with berth, and neither the configuration nor the state of a berth that serves on this host
//     is touched.
//   - It leaves nothing: the pod, the berth, its directory and its bridge are removed even if a
//     step fails or the demo is interrupted.
//   - It runs for a user without root as well, in the namespaces of berth rootless.
//   - It fails if a container does not end as it has to.
//
// # Files
//
// demo.go has the demo, service.go the berth that it starts, and show.go the pod.
package demo
