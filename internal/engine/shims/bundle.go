// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: it removes the bundles that containerd has forgotten. It relies on
// details that are not promised: their directories below containerd's state directory, the link
// called work, the mount called rootfs, and the leading dot of those that containerd was removing.
// No setting turns it off, because a bundle that is left is in the way of the next task of its ID.
// Delete when containerd removes, after its next start, the bundles that it could not remove:
// https://github.com/containerd/containerd/issues/11376.

package shims

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
)

// TaskDir is the directory of bundles below containerd's state directory.
const TaskDir = "/io.containerd.runtime.v2.task/" + connection.Namespace + "/"

// SandboxDir is the directory of the bundles of shims that are sandboxes, beside TaskDir.
const SandboxDir = "/io.containerd.sandbox.controller.v1.shim/" + connection.Namespace + "/"

// AsidePrefix hides a bundle: containerd passes over names that begin with a dot.
const AsidePrefix = ".aside-"

// removeBundle removes the bundle of a task that containerd does not know any more, in directories
// that bundlesBelow has returned: containerd's clean-up after a dead shim can be cut short, and
// containerd does not try again before its next start. A bundle that containerd could not remove to
// the end is called .ID, and is in the way of the removal of the next one. One that is hidden from
// a containerd that starts begins with AsidePrefix.
func removeBundle(id string, dirs []string) error {
	for _, dir := range dirs {
		for _, name := range []string{id, "." + id, AsidePrefix + id} {
			if err := removeBundleAt(filepath.Join(dir, name), id); err != nil {
				return fmt.Errorf("remove the bundle of %s: %w", id, err)
			}
		}
	}
	return nil
}

// bundlesBelow returns the directories of bundles below a state directory of containerd's. It
// excludes directories that a user other than berth's could have made, or could change: a
// neighbour's directories have the same names, and so may those of a user who wants berth to
// unmount, delete or believe something. That is why the table of mounts is not asked where bundles
// are. No link is followed below a directory that is returned, and no other user can put one into
// its path.
func bundlesBelow(state string) (dirs []string, err error) {
	state, err = filepath.EvalSymlinks(state)
	if isForeign(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if fixed, err := isFixed(filepath.Dir(state)); !fixed {
		return nil, err
	}
	for _, below := range []string{TaskDir, SandboxDir} {
		dir := state
		own, err := isOwn(dir)
		for name := range strings.SplitSeq(strings.Trim(below, "/"), "/") {
			if own {
				dir = filepath.Join(dir, name)
				own, err = isOwn(dir)
			}
		}
		if err != nil {
			return nil, err
		}
		if own {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// isOwn reports whether a path is a directory of berth's user in which no other user can exchange
// that user's files.
func isOwn(path string) (bool, error) { return isOf(path, uint32(os.Geteuid())) }

// isFixed reports whether only berth's user and the owner of the root directory can exchange that
// user's files in a directory, or the directory, or one above it: its path leads to the same place
// for as long as those want. In a user namespace, the host's root is an ID without a mapping.
func isFixed(dir string) (bool, error) {
	var root unix.Stat_t
	if err := unix.Lstat("/", &root); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: "/", Err: err}
	}
	for ; ; dir = filepath.Dir(dir) {
		if fixed, err := isOf(dir, root.Uid, uint32(os.Geteuid())); !fixed || dir == "/" {
			return fixed, err
		}
	}
}

// isOf reports whether a path is a directory of one of these users in which no other user can
// exchange their files.
func isOf(path string, users ...uint32) (bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if isForeign(err) {
			return false, nil
		}
		return false, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	shared := st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0
	return st.Mode&unix.S_IFMT == unix.S_IFDIR && slices.Contains(users, st.Uid) && !shared, nil
}

// isForeign reports whether an error means that a directory is absent, or is one that berth may not
// enter. Nothing keeps berth from entering its own.
func isForeign(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)
}

// BundleLeft reports whether a task may have a bundle, or the rest of one, in one of containerd's
// directories.
func (s *Shims) BundleLeft(id string) bool {
	dirs, err := s.bundleDirs()
	if err != nil {
		return true
	}
	for _, dir := range dirs {
		for _, name := range []string{id, "." + id} {
			if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
				return true
			}
		}
	}
	return false
}

func removeBundleAt(bundle, id string) error {
	if _, err := os.Lstat(bundle); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	rootfs := filepath.Join(bundle, "rootfs")
	// one mount may cover another
	for unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
	if err := removeMountPoint(rootfs); err != nil {
		return err
	}
	work, err := os.Readlink(filepath.Join(bundle, "work"))
	// EINVAL: it is not a link
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err == nil && filepath.Base(work) == id {
		if err := os.RemoveAll(work); err != nil {
			return err
		}
	}
	return os.RemoveAll(bundle)
}

// removeMountPoint removes the directory that a root filesystem was mounted on. The content of a
// root filesystem belongs to the container, and is not touched. The directory itself may have
// content, too: a start that was cut off can unmount the root filesystem while the OCI runtime of
// the next start works in it, which then makes its directories below the mount point.
func removeMountPoint(dir string) error {
	err := os.Remove(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	below, oerr := openBelow(dir)
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	defer below.Close()
	if err := clearBelow(below); err != nil {
		return err
	}
	return os.Remove(dir)
}

// openBelow opens a directory that nothing is mounted on, nor on anything in it. A later mount
// there is not reached through it.
func openBelow(dir string) (*os.Root, error) {
	path, err := filepath.EvalSymlinks(filepath.Dir(dir)) // as mounts are listed
	if err != nil {
		return nil, err
	}
	path = filepath.Join(path, filepath.Base(dir))
	below, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	// Read after the directory was opened, so that earlier mounts are listed.
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is still mounted", mounts[0].Mountpoint)
	}
	if err != nil {
		return nil, errors.Join(err, below.Close())
	}
	return below, nil
}

// clearBelow removes the content of a directory.
func clearBelow(below *os.Root) error {
	names, err := fs.ReadDir(below.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range names {
		if err := below.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return nil
}
