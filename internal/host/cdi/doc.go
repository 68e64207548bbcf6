// SPDX-License-Identifier: Apache-2.0

// Package cdi resolves devices of the Container Device Interface (CDI): it finds the specification
// of a device, such as vendor.com/gpu=0, in the configured directories, and applies it to a
// container. A device can add device nodes, environment variables, mounts, groups and hooks.
//
// # Promises
//
//   - If no specification describes a device, the error names the device, the directories that were
//     searched, and the files in them that are invalid. A container never runs without a device
//     that it asked for.
//   - The specifications are read for each container that asks for a device, and not before: one
//     that was written just before the request counts, and none keeps berth from its start.
//   - A FIFO or a device that is named like a specification is not opened.
//
// # Never
//
// The package does not know pods. It changes the OCI specification that it gets, and nothing on the
// host.
package cdi
