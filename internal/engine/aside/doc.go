// SPDX-License-Identifier: Apache-2.0

// Package aside sets tasks aside: it hides from a containerd that starts the tasks whose shims run,
// and gives each one back once its shim has answered.
//
// The room holds a trick whole, except for the part that needs the server, which is in adopt.go of
// package embed. It relies on behaviour that containerd does not promise: it passes over bundles
// whose names begin with a dot, a bundle has the files bootstrap.json and sandbox, and a shim
// answers to Connect, with its process. The setting tricks.set_aside turns it off; a containerd
// beside berth is left as it is. Delete when containerd serves while it asks shims, and does not
// treat an unanswered one as ended: https://github.com/containerd/containerd/issues/13848.
//
// # Promises
//
//   - [Hide] waits for no shim that hangs. It connects to each, and asks only those to which a
//     connection is not enough, which takes a fifth of a second.
//   - A task that is set aside lives on, and is given to containerd once its shim answers. One that
//     cannot be given back stays set aside and is tried again.
//   - A request for one task does not wait for the shims of others.
//   - Bundles that a killed server had hidden are found again.
//
// # Never
//
// It ends no task and no shim, and starts no OCI runtime.
//
// # Looking at it live
//
//	ls -a /run/berth/containerd/io.containerd.runtime.v2.task/k8s.io
//
// The names of hidden bundles begin with .aside-.
package aside
