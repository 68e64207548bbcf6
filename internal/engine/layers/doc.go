// SPDX-License-Identifier: Apache-2.0

// Package layers makes, mounts and deletes the writable layers of containers, and the views of
// images that containers mount.
//
// # Promises
//
//   - Nothing is made on a layer of an image that is doubted after an unclean boot.
//   - A layer that was made stays until it is deleted, and carries the label connection.LabelOwner.
//   - The owners of a mounted image are shifted as the user namespace of its pod asks, or the mount
//     is refused.
//
// # Files
//
// layers.go has the layers and the views, idmap.go shifts the owners of their files, unsynced.go
// mounts them without syncs, and changes.go reads and writes the changes in them.
package layers
