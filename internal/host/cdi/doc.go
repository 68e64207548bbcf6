// SPDX-License-Identifier: Apache-2.0

// Package cdi knows the devices of the Container Device Interface (CDI): what the specification
// files in the configured directories add to a container that asks for a device by its qualified
// name, such as vendor.com/gpu=0. A device can add device nodes, environment variables, mounts,
// groups and hooks.
//
// # Promises
//
//   - A device that no specification has is an error that names the device, the directories that
//     were searched, and what is wrong with the files in them. A container never runs without a
//     device that it asked for.
//   - The specifications are in memory and are read again when a file changes. A device that is not
//     found is looked for once more on disk, so that a specification which was written just before
//     the request counts.
//
// # Never
//
// The package does not know pods. It changes the OCI specification that it gets, and nothing on the
// host.
package cdi
