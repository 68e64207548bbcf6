// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// OOMKillsBelow returns how often the OOM killer fired in the group and in all groups that are
// below it, or were: the counter of a group outlives the groups below it. Cgroup v1 does not count
// that, and the answer is errdefs.ErrNotFound.
func OOMKillsBelow(dir string) (uint64, error) {
	if !V2() {
		return 0, fmt.Errorf("read the OOM kills below cgroup %s: cgroup v1 does not count them: %w", dir, errdefs.ErrNotFound)
	}
	return OOMKills(dir)
}

// OOMKills returns how many processes the OOM killer killed in the group and in those below it:
// oom_kill in memory.events, which includes the groups below (v2), or the sum of those in
// memory.oom_control of each group (v1, Linux 4.13). The sum does not contain the counts of groups
// that were removed, and if there are very many groups below, it contains only some of them
// ([mostBelow]).
//
// It returns errdefs.ErrNotFound if there is no counter: the group is gone, or never had a memory
// controller. That is not a verdict of 0, and the caller must use another source. systemd removes a
// scope's group as soon as it is empty, so the counter is best read when an exit is first noticed.
// That takes some microseconds, waits for no process and for no disk, and may be done where nothing
// may block.
func OOMKills(dir string) (uint64, error) {
	n, err := oomKills(dir)
	if err != nil || V2() {
		return n, err
	}
	for _, d := range below(dir) {
		if more, err := oomKills(d); err == nil { // it may be gone by now
			n += more
		}
	}
	return n, nil
}

// mostBelow is how many groups below one are looked at: a container can make very many, and an exit
// waits for it.
const mostBelow = 256

// below lists the groups below a group, those near to it first. It costs a single question to the
// kernel where there are none.
func below(dir string) (dirs []string) {
	for at := []string{dir}; len(at) > 0 && len(dirs) < mostBelow; at = at[1:] {
		if !hasBelow(at[0]) {
			continue
		}
		entries, err := os.ReadDir(at[0])
		if err != nil {
			continue // it is gone
		}
		for _, e := range entries {
			if e.IsDir() && len(dirs) < mostBelow {
				dirs = append(dirs, filepath.Join(at[0], e.Name()))
				at = append(at, filepath.Join(at[0], e.Name()))
			}
		}
	}
	return dirs
}

// hasBelow reports whether there are groups below a group: a directory of a cgroup has a link of
// its own, one from above, and one from each group below.
func hasBelow(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink > 2
}

// Unnoticed reports whether there can be OOM kills in groups below a group of which [OOMWatch] does
// not notice: cgroup v1 notifies of those in the group and above alone. It asks the kernel once.
func Unnoticed(dir string) bool { return !V2() && hasBelow(dir) }

// oomKills returns the counter of one group.
func oomKills(dir string) (uint64, error) {
	name := "memory.oom_control"
	if V2() {
		name = "memory.events"
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if absent(err) {
		return 0, fmt.Errorf("read the OOM kills of cgroup %s: it has no %s any more: %w", dir, name, errdefs.ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("read the OOM kills of a cgroup: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the OOM kills of cgroup %s: %w", dir, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("read the OOM kills of cgroup %s: this kernel does not count them: %w", dir, errdefs.ErrNotFound)
}
