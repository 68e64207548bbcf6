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

// endPlugins ends the plug-ins, and what they run, that an earlier berth left at work on a pod when
// it was killed: one that connects the pod, and goes on while the pod is disconnected, would leave
// what is in no record. They are recognised by the variable in which CNI passes the pod's ID. It
// looks until it finds none: what it ends may just have started another program.
func endPlugins(ctx context.Context, podID string) error {
	for {
		ended, err := endPluginsOnce(ctx, podID)
		if err != nil || ended == 0 {
			return err
		}
	}
}

// endPluginsOnce ends those that are there now, and returns how many there were.
func endPluginsOnce(ctx context.Context, podID string) (int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for plug-ins at work on pod %s: %w", podID, err)
	}
	ended := 0
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !worksOn(pid, podID) {
			continue
		}
		if err := endPlugin(ctx, pid, podID); err != nil {
			return 0, fmt.Errorf("end plug-in %d at work on pod %s: %w", pid, podID, err)
		}
		ended++
	}
	return ended, nil
}

// worksOn reports whether a process has the pod's ID in its environment. Only the host's own
// processes are looked into: reading the environment takes the lock of the process's memory map,
// which a container may hold for ever, and what is in it is the container's to choose. A container
// always has a mount namespace of its own, which it cannot leave for the host's, and a plug-in has
// berth's.
func worksOn(pid int, podID string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	if theirs, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err != nil || theirs != own {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, "environ"))
	return err == nil && bytes.Contains(append([]byte{0}, b...), []byte("\x00CNI_CONTAINERID="+podID+"\x00"))
}

// endPlugin kills a process and waits for its end, until ctx ends.
func endPlugin(ctx context.Context, pid int, podID string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !worksOn(pid, podID) { // the number belongs to another process by now
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
