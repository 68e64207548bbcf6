// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package unpack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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

// Fence returns nil where the kernel can keep a process that unpacks a layer to the layer's own
// directory, by Landlock, or why it cannot.
func Fence() error {
	_, err := landlock()
	return err
}

// landlock returns all rights that the kernel's version of Landlock knows.
func landlock() (rights uint64, err error) {
	version, _, errno := syscall.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
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

// fence keeps the process, in all threads and for ever, to the files of the request. If a layer
// misleads containerd's code, it still opens nothing else. Without Landlock nothing is done.
func (r request) fence() error {
	all, err := landlock()
	// A process that syncs does not read the content of the layer, and opens the directory of all
	// layers.
	if err != nil || r.Work == syncing || r.Work == syncingAll {
		return nil // berth says it when it starts
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: all}
	set, _, errno := syscall.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0) //nolint:gosec // the kernel reads it
	if errno != 0 {
		return fmt.Errorf("make rules of Landlock: %w", errno)
	}
	defer func() { _ = unix.Close(int(set)) }()
	for path, rights := range r.needs(all) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // the work fails by itself
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
		_, _, errno := syscall.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0) //nolint:gosec // the kernel reads it
		_ = unix.Close(fd)
		if errno != 0 {
			return fmt.Errorf("allow %s by Landlock: %w", path, errno)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return fmt.Errorf("keep the process to its directory by Landlock: %w", errno)
	}
	return nil
}

// needs returns the rights below each directory that the process needs: the layer's, that of its
// index, its parents', and its own in /proc, by which it knows how much memory it has used.
func (r request) needs(all uint64) map[string]uint64 {
	need := map[string]uint64{fmt.Sprintf("/proc/%d", os.Getpid()): reads}
	for _, parent := range r.Target.Parents {
		need[parent] = reads
	}
	if r.Target.Dir != "" {
		need[r.Target.Dir] = reads
	}
	if r.Target.Index != "" {
		need[filepath.Dir(r.Target.Index)] = all
	}
	switch {
	case r.Work == "" && r.Target.Dir != "":
		need[r.Target.Dir] = all
	case r.Work == checking && r.Target.Index != "":
		need[filepath.Dir(r.Target.Index)] = reads
	}
	return need
}
