// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
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

// OOMKills returns how many processes the OOM killer killed in the group: oom_kill in
// memory.events, which includes the groups below (v2), or in memory.oom_control, which does not
// (v1, Linux 4.13).
//
// It returns errdefs.ErrNotFound if there is no counter: the group is gone, or never had a memory
// controller. That is not a verdict of 0, and the caller must ask somebody else. systemd removes a
// scope's group as soon as it is empty, so the counter is best read when an exit is first noticed.
// That takes some microseconds, waits for no process and for no disk, and may be done where nothing
// may block.
func OOMKills(dir string) (uint64, error) {
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
