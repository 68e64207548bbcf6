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

	"berth/internal/base/retry"
	"berth/internal/host/pidfd"
)

// KillAll sends SIGKILL to all processes of the group, and of the groups below it, until it sees
// none left. It thaws those that are frozen. If ctx ends first, the error wraps ctx's and contains
// the number of remaining processes. An empty dir names no group, and is a success.
func KillAll(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	_, err := killAll(ctx, dir)
	return err
}

// The wait before a group is looked at again whose processes were killed and have not left yet.
const (
	firstLook   = time.Millisecond
	slowestLook = 100 * time.Millisecond
)

// killAll implements [KillAll], and reports whether it found a process.
func killAll(ctx context.Context, dir string) (found bool, err error) {
	var left int
	for range retry.Doubling(ctx.Done(), firstLook, slowestLook) {
		if left > 0 { // they were killed, and have had the time to end
			if err := letEnd(dir); err != nil {
				return found, err
			}
		}
		left, err = killOnce(dir)
		found = found || left > 0
		if err != nil || left == 0 {
			return found, err
		}
	}
	return found, fmt.Errorf("end the processes of cgroup %s: %d remain: %w", dir, left, ctx.Err())
}

// killOnce signals every process that it finds and returns their number.
func killOnce(dir string) (left int, err error) {
	members := map[string][]int{}
	dirs, err := tree(dir)
	if err != nil {
		return 0, err
	}
	for _, d := range dirs {
		pids, err := Procs(d)
		if err != nil {
			return left, err
		}
		members[d] = pids
		left += len(pids)
	}
	// Only now, because a process that ends at once could not be counted any more. cgroup.kill came
	// with Linux 5.14, and cgroup v1 has none.
	if left == 0 || os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return left, nil
	}
	for d, pids := range members {
		for _, pid := range pids {
			if err := killMember(pid, d); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

// killMember kills pid if it is a member of the group. Membership is read after the pidfd was
// opened: if the pid was given to another process before, that one is not a member, and if it is
// given to another one later, the pidfd does not follow.
func killMember(pid int, dir string) error {
	fd, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
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
	if err := pidfd.Send(fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}
