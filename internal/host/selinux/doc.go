// SPDX-License-Identifier: Apache-2.0

// Package selinux allocates the labels of pods, so that no two pods have the same category.
//
// # Promises
//
//   - A label that Init returned is not returned to another pod until it was released as often as
//     it was returned or reserved. A pod's containers share the category of its sandbox.
//   - Releasing a label that is not held succeeds.
//
// # Use
//
// [Open] returns nil if SELinux is off. After a restart the caller first reserves the labels of
// running pods. It releases the label of a container or sandbox when that is removed.
//
// # Never
//
// The package changes no process, and no file but those that it is asked to label: the OCI runtime
// applies the labels. It keeps nothing on disk: the records have the labels.
package selinux
