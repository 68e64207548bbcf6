// SPDX-License-Identifier: Apache-2.0

// Package manifest translates a Kubernetes v1 Pod into requests of the Container Runtime Interface
// (CRI), the way the kubelet does.
//
// # Use
//
// [Parse] reads the YAML, [Translate] makes a [Plan], [Volume.Prepare] makes the volumes of the
// plan. Running the plan is the caller's part: it creates the sandbox, then the init containers one
// after the other, then the containers. [Container.WithPodIP] fills in the pod's address once the
// sandbox runs.
//
// # Promises
//
//   - Translate is pure: it reads nothing but its arguments, and it does not change the pod.
//   - A field that berth cannot honour is an error that names the field, unless the caller asks for
//     such fields to be left out; then [Plan.Ignored] lists them. No field is ignored silently.
//   - Names, namespaces and UIDs become parts of paths, so everything that could lead elsewhere is
//     refused.
//
// # What it never does
//
// It does not speak to a runtime, and neither restarts nor probes containers: it completes and
// checks restartPolicy and the probes for a caller that does (`berth play --watch`).
package manifest
