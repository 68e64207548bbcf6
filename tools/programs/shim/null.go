// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// nulls starts the OCI runtime as containerd's shim does, and gives it a null device of its own
// wherever it would have the host's. The program of an exec gets that as its standard input, and
// root in a container could change the mode, the owner and the times of the host's device by it.
// Delete when the OCI runtime's exec opens the container's own null device, as the start of a
// container does.
type nulls struct{ runc.ProcessMonitor }

// Start starts a command.
func (n nulls) Start(c *exec.Cmd) (chan runc.Exit, error) {
	defer replace(c)()
	return n.ProcessMonitor.Start(c)
}

// StartLocked starts a command from a thread of its own.
func (n nulls) StartLocked(c *exec.Cmd) (chan runc.Exit, error) {
	defer replace(c)()
	return n.ProcessMonitor.StartLocked(c)
}

// replace gives a command that makes a process of a container a null device of its own. done is to
// be called once the command was started.
func replace(c *exec.Cmd) (done func()) {
	if !slices.ContainsFunc(c.Args, func(a string) bool { return a == "exec" || a == "create" || a == "restore" }) {
		return func() {}
	}
	own, err := newNull()
	if err != nil { // as in a user namespace, where the host's cannot be changed
		return func() {}
	}
	give(c, own)
	return func() { _ = own.Close() }
}

// give replaces those standard streams of a command that would be the host's null device.
func give(c *exec.Cmd, own *os.File) {
	isNull := func(stream any) bool {
		f, ok := stream.(*os.File)
		return stream == nil || ok && f.Name() == os.DevNull
	}
	if isNull(c.Stdin) {
		c.Stdin = own
	}
	if isNull(c.Stdout) {
		c.Stdout = own
	}
	if isNull(c.Stderr) {
		c.Stderr = own
	}
}

// newNull opens a null device of its own, on a file system that is not attached anywhere. berth
// makes those of its probes in the same way, in a module of its own (internal/serve/join): with
// that module as a dependency of this one, the versions that berth needs would decide those of the
// programs that are pinned and built here.
func newNull() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a null device: fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("make a null device: fsconfig: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a null device: fsmount: %w", err)
	}
	defer unix.Close(root)
	if err = unix.Mkdirat(root, "dev", 0o755); err == nil {
		err = unix.Mknodat(root, "dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	}
	if err == nil {
		err = unix.Fchmodat(root, "dev/null", 0o666, 0) // regardless of the umask
	}
	var label [256]byte
	if n, none := unix.Getxattr(os.DevNull, "security.selinux", label[:]); err == nil && none == nil && n > 0 {
		// A container may use no other.
		err = unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d/dev/null", root), "security.selinux", label[:n], 0)
	}
	if err != nil {
		return nil, fmt.Errorf("make a null device: %w", err)
	}
	fd, err := unix.Openat(root, "dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a null device: %w", err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}
