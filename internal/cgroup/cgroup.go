// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const mount = "/sys/fs/cgroup"

// V2 reports whether this host has the unified hierarchy alone (cgroups(7)).
var V2 = sync.OnceValue(func() bool {
	var st unix.Statfs_t
	return unix.Statfs(mount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
})

// Of is the directory of the group that process pid is in: the memory controller's on v1,
// the unified one on v2. The process must exist.
func Of(pid uint32) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find cgroup of process %d: %w", pid, err)
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), ":", 3) // hierarchy:controllers:path
		if len(f) != 3 {
			continue
		}
		if V2() && f[0] == "0" {
			return dir(pid, mount, f[2])
		}
		if !V2() {
			for _, c := range strings.Split(f[1], ",") {
				if c == "memory" {
					return dir(pid, filepath.Join(mount, "memory"), f[2])
				}
			}
		}
	}
	return "", fmt.Errorf("find cgroup of process %d: no memory controller", pid)
}

// dir refuses the root group: what berth reads or ends there is not the container's.
func dir(pid uint32, base, path string) (string, error) {
	d := filepath.Join(base, filepath.Clean("/"+path))
	if d == base {
		return "", fmt.Errorf("find cgroup of process %d: it is in the root group", pid)
	}
	return d, nil
}

// OOMKills is how many processes of the group and its children the kernel has killed for
// want of memory: oom_kill in memory.events (v2) or memory.oom_control (v1, Linux 4.13).
func OOMKills(dir string) (uint64, error) {
	name := "memory.oom_control"
	if V2() {
		name = "memory.events"
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read oom kills: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return strconv.ParseUint(v, 10, 64)
		}
	}
	return 0, nil
}

// Procs lists the processes of the group itself, children not included.
func Procs(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		if p, err := strconv.Atoi(f); err == nil && p > 0 {
			pids = append(pids, p)
		}
	}
	return pids, nil
}

// tree is the group and its children, deepest last. An absent group is an empty tree.
func tree(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // a child that went away meanwhile is no error
	})
	return dirs
}

// Empty reports whether no process is left in the group and its children.
func Empty(dir string) (bool, error) {
	for _, d := range tree(dir) {
		pids, err := Procs(d)
		if err != nil || len(pids) > 0 {
			return false, err
		}
	}
	return true, nil
}

// KillAll sends SIGKILL to all processes of the group and its children until none is left.
// It returns nil when the group is empty, else ctx's error with the number that remain.
func KillAll(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	wait := time.Millisecond
	for {
		left, err := killOnce(dir)
		if err != nil || left == 0 {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("end what is left in %s: %d processes remain: %w", dir, left, ctx.Err())
		case <-t.C:
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
}

func killOnce(dir string) (left int, err error) {
	killed := V2() && os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil // Linux 5.14
	for _, d := range tree(dir) {
		pids, err := Procs(d)
		if err != nil {
			return left, err
		}
		left += len(pids)
		if killed {
			continue
		}
		for _, pid := range pids {
			if err := killMember(pid, d); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

// killMember kills pid if it is still in the group: the pidfd pins it, so that the check is
// about the process that the signal hits.
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
	if err != nil {
		return err
	}
	for _, p := range pids {
		if p == pid {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}
