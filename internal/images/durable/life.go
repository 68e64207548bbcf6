// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kinds are the types of file systems that have a directory in sysfs for each life,
// /sys/fs/TYPE/DEVICE.
var kinds = []string{"ext4", "xfs", "f2fs"}

// Life returns a text that differs between two lives of the file systems of some directories,
// within a boot: if a file system was shut down and mounted again, the kernel has lost its
// unwritten pages, as after a boot. A directory that is not there yet will be on the file system of
// the one that it is made in.
//
// Each life of an ext4, XFS or F2FS has a directory in sysfs, which is made when the file system is
// mounted and has a number of its own. The number is the same by each mount of the file system and
// in each mount namespace, so that it does not change when berth is started again by systemd with
// mounts of its own.
//
// Of other file systems, such as Btrfs, the mount that leads to the directory tells: its number is
// never given again (Linux 6.8). It is asked for in the namespace of the host's first process if
// the same file system is there, since berth's own mounts may be new with each start.
//
// The text of a directory is empty if the kernel has neither. It is an error if the kernel could
// not be asked.
func Life(dirs ...string) (string, error) {
	var lives []string
	for _, dir := range dirs {
		text, err := life(dir)
		if err != nil {
			return "", fmt.Errorf("tell whether the file system of %s was mounted again: %w", dir, err)
		}
		lives = append(lives, text)
	}
	return strings.Trim(strings.Join(lives, ", "), ", "), nil
}

func life(dir string) (string, error) {
	// A link would lead out of the root directory of the first process.
	target, err := filepath.EvalSymlinks(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		target, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	dir = target
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if text, err := superblock(st.Dev); text != "" || err != nil {
		return text, err
	}
	for _, path := range []string{filepath.Join("/proc/1/root", dir), dir} {
		id, dev, err := mountOf(path)
		if err == nil && id != 0 && dev == st.Dev {
			return "mount " + strconv.FormatUint(id, 10), nil
		}
	}
	return "", nil
}

// superblock returns the number of the directory in sysfs of the file system on a device.
func superblock(dev uint64) (string, error) {
	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // it is not on one device, or sysfs is not there
	}
	if err != nil {
		return "", err
	}
	for _, kind := range kinds {
		own := filepath.Join("/sys/fs", kind, filepath.Base(name))
		var st unix.Stat_t
		switch err := unix.Stat(own, &st); {
		case err == nil:
			return fmt.Sprintf("%s %s %d", kind, filepath.Base(name), st.Ino), nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", &fs.PathError{Op: "stat", Path: own, Err: err}
		}
	}
	return "", nil
}

// mountOf returns the unique number of the mount that leads to a path, and the device of its file
// system. The number is 0 where the kernel has none.
func mountOf(path string) (id, dev uint64, err error) {
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID_UNIQUE, &stx); err != nil {
		return 0, 0, err
	}
	if stx.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return 0, 0, nil
	}
	return stx.Mnt_id, unix.Mkdev(stx.Dev_major, stx.Dev_minor), nil
}
