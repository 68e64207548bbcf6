// SPDX-License-Identifier: Apache-2.0

// Package selinux allocates the labels of pods, so that no two pods have the same category.
//
// # Promises
//
//   - A label that Init returned is nobody else's until it was released as often as it was returned
//     or reserved. A pod's containers share the category of its sandbox.
//   - Releasing what is not held succeeds.
//
// # Use
//
// [Open] is nil where SELinux is off. After a restart the caller reserves the labels of what runs,
// before it makes anything; it releases the label of a container or sandbox when that is removed.
package selinux
