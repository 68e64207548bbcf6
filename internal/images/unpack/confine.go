// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package unpack

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confines reports whether the process gives up its capabilities.
const confines = true

// needed are the capabilities that writing the files of a layer takes. CAP_SYS_ADMIN is for
// attributes that are called trusted, by which overlayfs knows the deletions of a layer.
const needed = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SYS_ADMIN

// confine gives up, in all threads, the capabilities that are not needed, and gets none by a
// program that it starts.
func confine() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	keep := [2]uint32{needed & 0xffffffff, needed >> 32}
	for n := range has {
		has[n].Permitted &= keep[n]
		has[n].Effective &= keep[n]
		has[n].Inheritable = 0
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&has[0])), 0) //nolint:gosec // the kernel reads it
	if errno != 0 {
		return fmt.Errorf("give up capabilities: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	return nil
}
