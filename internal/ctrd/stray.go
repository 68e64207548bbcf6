// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// endStrayShim kills a shim that containerd does not know of: one that was just started when containerd was killed,
// before it wrote down how to reach it. The shim is known by its arguments; IDs are random and not shared.
func endStrayShim(id string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look for stray shims: %w", err)
	}
	mark := []byte("\x00-id\x00" + id + "\x00")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0) // first, so that what is read is of the process that is signalled
		if err != nil {
			continue
		}
		err = killIfShim(fd, pid, mark)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("end stray shim %d of %s: %w", pid, id, err)
		}
	}
	return nil
}

func killIfShim(fd, pid int, mark []byte) error {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !bytes.Contains(b, mark) {
		return nil //nolint:nilerr // it ended meanwhile
	}
	if name, _, _ := bytes.Cut(b, []byte{0}); !bytes.HasPrefix([]byte(filepath.Base(string(name))), []byte("containerd-shim")) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
