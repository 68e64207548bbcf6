// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const mount = "/sys/fs/cgroup"

// V2 reports whether this host has the unified hierarchy alone (cgroups(7)).
var V2 = sync.OnceValue(func() bool {
	var st unix.Statfs_t
	return unix.Statfs(mount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
})

// Of returns the directory of the group that process pid is in: the memory controller's on v1, the
// unified hierarchy's on v2. It goes by the pid: the caller must check afterwards that the process
// has not ended meanwhile, or the answer may be about another process.
func Of(pid uint32) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), ":", 3) // hierarchy:controllers:path
		if len(f) != 3 {
			continue
		}
		if V2() && f[0] == "0" {
			return dirOf(pid, mount, f[2])
		}
		if !V2() && slices.Contains(strings.Split(f[1], ","), "memory") {
			return dirOf(pid, filepath.Join(mount, "memory"), f[2])
		}
	}
	return "", fmt.Errorf("find the cgroup of process %d: it has no memory controller", pid)
}

// Dir returns the directory that [Of] would return for a process whose group has this path in each
// hierarchy.
func Dir(path string) string {
	if V2() {
		return filepath.Join(mount, path)
	}
	return filepath.Join(mount, "memory", path)
}

// dirOf refuses the root group, because its counters and processes are not those of a container.
func dirOf(pid uint32, base, path string) (string, error) {
	d := filepath.Join(base, filepath.Clean("/"+path))
	if d == base {
		return "", fmt.Errorf("find the cgroup of process %d: it is in the root group", pid)
	}
	return d, nil
}

// Procs lists the processes of the group, without those of its child groups.
func Procs(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the processes of a cgroup: %w", err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		if p, err := strconv.Atoi(f); err == nil && p > 0 {
			pids = append(pids, p)
		}
	}
	return pids, nil
}

// absent reports whether err means that the group is gone: ErrNotExist before its file was opened,
// or ENODEV afterwards.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// tree lists the group and all groups below it, each after its parent. It is empty for an absent
// group. A group that cannot be looked into is an error: there may be processes below.
func tree(dir string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if absent(err) {
				return nil // it may vanish during the walk
			}
			return fmt.Errorf("list the groups below %s: %w", dir, err)
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs, err
}

// Empty reports whether no process is left in the group and in the groups below it.
func Empty(dir string) (bool, error) {
	dirs, err := tree(dir)
	if err != nil {
		return false, err
	}
	for _, d := range dirs {
		pids, err := Procs(d)
		if err != nil || len(pids) > 0 {
			return false, err
		}
	}
	return true, nil
}
