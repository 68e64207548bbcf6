// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// endPlugins ends the plug-ins, and what they called, that an earlier berth left at work on a pod when it was killed: one that
// adds the pod, and goes on while it is taken off, would leave what nobody knows of. They are known by the
// variable that CNI hands the pod's ID in.
func endPlugins(ctx context.Context, podID string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look for plug-ins at work on pod %s: %w", podID, err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !worksOn(pid, podID) {
			continue
		}
		if err := endPlugin(ctx, pid, podID); err != nil {
			return fmt.Errorf("end plug-in %d at work on pod %s: %w", pid, podID, err)
		}
	}
	return nil
}

func worksOn(pid int, podID string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	return err == nil && bytes.Contains(append([]byte{0}, b...), []byte("\x00CNI_CONTAINERID="+podID+"\x00"))
}

func endPlugin(ctx context.Context, pid int, podID string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !worksOn(pid, podID) { // another process by now
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for ctx.Err() == nil {
		if n, err := unix.Poll(fds, 10); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return nil //nolint:nilerr // it cannot be waited for, but it was killed
		}
	}
	return ctx.Err()
}
