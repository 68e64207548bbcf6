// SPDX-License-Identifier: Apache-2.0

package join

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// null is the null device of one container, which is the standard input of its probes. A program
// can change the mode, the owner and the times of a file by a descriptor, and root in a container
// must not change those of the host's null device. It is on a file system that is not attached
// anywhere, with the usual path in it.
type null struct {
	root *os.File // of the file system; nil for the host's device
}

// newNull makes a null device, which the caller closes.
func newNull() (_ *null, err error) {
	root, err := detached()
	if err != nil {
		return nil, fmt.Errorf("make a null device: %w", err)
	}
	defer func() {
		if err != nil {
			_ = root.Close()
		}
	}()
	dir := int(root.Fd())
	if err := unix.Mkdirat(dir, "dev", 0o755); err != nil {
		return nil, fmt.Errorf("make a null device: %w", err)
	}
	err = unix.Mknodat(dir, "dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	switch {
	case errors.Is(err, unix.EPERM) && hostsIsForeign():
		_ = root.Close()
		return &null{}, nil
	case err == nil:
		err = unix.Fchmodat(dir, "dev/null", 0o666, 0) // regardless of the umask
	}
	if err != nil {
		return nil, fmt.Errorf("make a null device: %w", err)
	}
	if label(fmt.Sprintf("/proc/self/fd/%d/dev/null", dir)) != nil {
		// SELinux may forbid the container to use a device without the label: it gets the host's, as by
		// the OCI runtime. A file system that is mounted with the label (its option context) does not
		// help: the policy refuses the same label there. The null device in the container's own /dev has
		// a label that it may use, but is not taken, because the container controls that path.
		_ = root.Close()
		return &null{}, nil
	}
	return &null{root}, nil
}

// detached makes a file system in memory that is mounted in no place.
func detached() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("fsconfig: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w", err)
	}
	return os.NewFile(uintptr(fd), "tmpfs"), nil
}

// hostsIsForeign reports whether the host's null device belongs to a user that this user namespace
// does not have, as for berth rootless: then no process in it, root of a container included, can
// change the device, or make another.
func hostsIsForeign() bool {
	const overflow = 65534
	var s unix.Stat_t
	return unix.Stat(os.DevNull, &s) == nil && s.Uid == overflow && s.Gid == overflow
}

// label gives a device the SELinux label that the host's null device has, if that has one: a
// container may use no other.
func label(device string) error {
	var b [256]byte
	n, err := unix.Getxattr(os.DevNull, "security.selinux", b[:])
	if err != nil || n == 0 {
		return nil // there is no SELinux
	}
	return unix.Setxattr(device, "security.selinux", b[:n], 0)
}

// open opens the device, for one program.
func (n *null) open() (*os.File, error) {
	if n.root == nil {
		return os.Open(os.DevNull)
	}
	fd, err := unix.Openat(int(rawFD(n.root)), "dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a null device: %w", err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

// close gives the device back. If it is open it stays.
func (n *null) close() { closeAll([]*os.File{n.root}) }
