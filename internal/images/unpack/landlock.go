// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// reads are the rights of Landlock to read, and all those to do anything with a file. Those
	// after fenceRefer are of later versions of it.
	reads      = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	fenceRefer = unix.LANDLOCK_ACCESS_FS_REFER<<1 - 1
	// fenceVersion is the first version that allows links and renames from one directory to
	// another, as layers have them: that of Linux 5.19.
	fenceVersion = 2
)

// landlock returns all rights that the kernel's version of Landlock knows.
func landlock() (rights uint64, err error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno != 0:
		return 0, fmt.Errorf("this kernel has no Landlock: %w", errno)
	case version < fenceVersion:
		return 0, fmt.Errorf("this kernel has version %d of Landlock, which forbids links from one directory to another: %w", version, errors.ErrUnsupported)
	}
	rights = fenceRefer
	if version >= 3 {
		rights |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 5 {
		rights |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return rights, nil
}

// restrict keeps threads to the rights below each path, as far as that exists, for ever. self is
// the system call that does so, for a thread or for all.
func restrict(all uint64, need map[string]uint64, self func(set uintptr) unix.Errno) error {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: all}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0) //nolint:gosec // the kernel reads it
	if errno != 0 {
		return fmt.Errorf("make rules of Landlock: %w", errno)
	}
	defer func() { _ = unix.Close(int(set)) }()
	for path, rights := range need {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // the work fails by itself
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0) //nolint:gosec // the kernel reads it
		_ = unix.Close(fd)
		if errno != 0 {
			return fmt.Errorf("allow %s by Landlock: %w", path, errno)
		}
	}
	if errno := self(set); errno != 0 {
		return fmt.Errorf("keep the process to its files by Landlock: %w", errno)
	}
	return nil
}
