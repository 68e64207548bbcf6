// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// KillAll sends SIGKILL to all processes of the group, and of the groups below it, until it sees
// none left. If ctx ends before, the error wraps ctx's and says how many remain. An empty dir names
// no group, and is a success.
func KillAll(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	_, err := killAll(ctx, dir)
	return err
}

// killAll is [KillAll], and reports whether it found a process.
func killAll(ctx context.Context, dir string) (found bool, err error) {
	wait := time.Millisecond
	for {
		some, left, err := killOnce(dir)
		found = found || some
		if err != nil || left == 0 {
			return found, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return found, fmt.Errorf("end the processes of cgroup %s: %d remain: %w", dir, left, ctx.Err())
		case <-t.C:
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
}

// killOnce signals every process of the group. It says whether there was one, and how many are left.
func killOnce(dir string) (found bool, left int, err error) {
	// Before the signal: a process may be gone before it can be counted.
	if left, err = eachMember(dir, func(int, string) error { return nil }); err != nil || left == 0 {
		return left > 0, left, err
	}
	// cgroup.kill came with Linux 5.14.
	signal := killMember
	if V2() && os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		signal = func(int, string) error { return nil }
	}
	left, err = eachMember(dir, signal)
	return true, left, err
}

// eachMember calls f for every process of the group, and of those below it, and counts them.
func eachMember(dir string, f func(pid int, dir string) error) (n int, err error) {
	for _, d := range tree(dir) {
		pids, err := Procs(d)
		if err != nil {
			return n, err
		}
		n += len(pids)
		for _, pid := range pids {
			if err := f(pid, d); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// killMember kills pid if it is a member of the group. Membership is read after the pidfd was
// opened: if the pid was given to another process before, that one is not a member, and if it is
// given to another one later, the pidfd does not follow.
func killMember(pid int, dir string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	pids, err := Procs(dir)
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}
