// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// MapsOwners reports whether a snapshotter can shift the owners of the files of a snapshot, as user
// namespaces need: it has to know how, and the kernel has to be able to on the file system of its
// layers.
func MapsOwners(ctx context.Context, c *Client, snapshotter string) (bool, error) {
	capabilities, err := c.GetSnapshotterCapabilities(ns(ctx), snapshotter)
	if err != nil {
		return false, fmt.Errorf("ask for capabilities of snapshotter %s: %w", snapshotter, native(err))
	}
	if !slices.Contains(capabilities, "remap-ids") {
		return false, nil
	}
	root, err := snapshotterRoot(ctx, c, snapshotter)
	if err != nil || root == "" { // a snapshotter that does not say where it is has to be believed
		return err == nil, err
	}
	return mapsOwnersOf(root)
}

// mapsOwnersOf tries to map the owners of the files in a directory, with a mount that nobody sees.
func mapsOwnersOf(dir string) (bool, error) {
	const mapping = "0:100000:65536"
	namespace, err := mount.GetUsernsFD(mapping, mapping)
	if err != nil {
		return false, fmt.Errorf("make a user namespace: %w", err)
	}
	defer namespace.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false, fmt.Errorf("open %s as a mount: %w", dir, err)
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(namespace.Fd()),
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // the file system, or the kernel, cannot
		return false, nil
	}
	return false, fmt.Errorf("map the owners of %s: %w", dir, err)
}
