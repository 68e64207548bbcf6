// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/imagestore"
)

// MapsOwners reports whether a snapshotter can shift the owners of the files of a snapshot, as user
// namespaces need: it has to know how, and the kernel has to be able to on the file system of its
// layers.
func MapsOwners(ctx context.Context, conn *connection.Connection, snapshotter string) (bool, error) {
	capabilities, err := conn.SnapshotterCapabilities(ctx, snapshotter)
	if err != nil {
		return false, err
	}
	if !slices.Contains(capabilities, "remap-ids") {
		return false, nil
	}
	root, err := conn.SnapshotterRoot(ctx, snapshotter)
	if err != nil || root == "" { // if a snapshotter does not export its directory, it is trusted
		return err == nil, err
	}
	return mapsOwnersOf(root)
}

// mapsOwnersOf tries to map the owners of the files in a directory, with a mount that is not
// attached anywhere.
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
	// the file system, or the kernel, cannot
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return false, nil
	}
	return false, fmt.Errorf("map the owners of %s: %w", dir, err)
}

// mountShifted mounts a snapshotter's mounts of a snapshot whose owners are shifted. If the
// snapshotter did not request the shift, or the kernel cannot make it, nothing is mounted and the
// error is ErrFailedPrecondition.
func mountShifted(ms []mount.Mount, dir string) error {
	for _, m := range ms {
		uids, gids := imagestore.OptionOf(m.Options, "uidmap="), imagestore.OptionOf(m.Options, "gidmap=")
		if uids == "" || gids == "" {
			return fmt.Errorf("the snapshotter does not shift the owners of its files for a user namespace; use overlayfs: %w", errdefs.ErrFailedPrecondition)
		}
		mountOne := func() error { return m.Mount(dir) }
		if m.Type == "bind" {
			mountOne = func() error { return bindShifted(m, dir, uids, gids) }
		}
		err := mountOne()
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			return fmt.Errorf("the kernel cannot shift the owners of its files for a user namespace on the file system of the layers: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bindShifted mounts a directory on another one, with its owners shifted. A view of an image of one
// layer is such a mount. mount.Mount makes it read-only and does not shift its owners after that.
func bindShifted(m mount.Mount, dir, uids, gids string) error {
	namespace, err := mount.GetUsernsFD(uids, gids)
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer namespace.Close()
	attributes := map[string]uint64{
		"ro":     unix.MOUNT_ATTR_RDONLY,
		"nosuid": unix.MOUNT_ATTR_NOSUID,
		"nodev":  unix.MOUNT_ATTR_NODEV,
		"noexec": unix.MOUNT_ATTR_NOEXEC,
	}
	var set uint64
	for _, o := range m.Options {
		set |= attributes[o]
	}
	// The mount has all of this before it becomes visible.
	return mount.IDMapMountWithAttrs(m.Source, dir, int(namespace.Fd()), set, 0)
}
