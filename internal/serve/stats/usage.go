// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	cgroup1 "github.com/opencontainers/cgroups/fs"
	cgroup2 "github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/fscommon"
)

// everything selects the controllers for metrics.
const everything = cgroups.CPU | cgroups.Memory | cgroups.Pids | cgroups.IO | cgroups.HugeTLB

// forStats returns the controllers for statistics: of I/O, CRI has only the pressure, which cgroup
// v1 lacks.
func (h hierarchy) forStats() cgroups.Controller {
	if h.v2 {
		return cgroups.CPU | cgroups.Memory | cgroups.IO
	}
	return cgroups.CPU | cgroups.Memory
}

// unlimited is the smallest value of a memory limit that means none: cgroup v1 has the largest
// number of pages, cgroup v2 "max".
const unlimited = 1 << 62

// hierarchy is where cgroups are found.
type hierarchy struct {
	mount string // /sys/fs/cgroup
	v2    bool   // whether it is the unified hierarchy
}

// group is one cgroup, by its directory as it is on record: the memory controller's on cgroup v1,
// the unified hierarchy's on v2.
type group struct {
	hierarchy
	dir string
}

func (h hierarchy) group(dir string) group { return group{h, dir} }

// path returns the directory of the group under a controller of cgroup v1.
func (g group) path(controller string) string {
	if g.v2 {
		return g.dir
	}
	rel, err := filepath.Rel(filepath.Join(g.mount, "memory"), g.dir)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.Join(g.mount, controller, rel)
}

// name returns the group's path within its hierarchy, as cAdvisor names cgroups.
func (g group) name() string {
	base := g.mount
	if !g.v2 {
		base = filepath.Join(g.mount, "memory")
	}
	return strings.TrimPrefix(g.dir, base)
}

// usage holds the values read from a cgroup at one instant.
type usage struct {
	*cgroups.Stats
	v2      bool
	at      time.Time
	hasCPU  bool
	hasCFS  bool // the periods of the quota
	hasMem  bool
	hasPids bool
	guest   bool // a shim has reported it, with fewer figures than a cgroup has
}

// read reads the counters of the group. It returns errdefs.ErrNotFound if the group is gone, even
// if it vanished during the reading, because then the values are not complete.
func (g group) read(what cgroups.Controller) (*usage, error) {
	if g.dir == "" {
		return nil, fmt.Errorf("read the usage of a cgroup: it is not known: %w", errdefs.ErrNotFound)
	}
	stats, err := g.stats(what)
	u := &usage{Stats: stats, v2: g.v2, at: time.Now()}
	if _, gone := os.Stat(g.dir); errors.Is(gone, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the usage of cgroup %s: it is gone: %w", g.dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the usage of cgroup %s: %w", g.dir, err)
	}
	// On cgroup v1 each controller has a directory of its own, and the runtime removes them one
	// after the other. An absent one reads as zeros.
	u.hasCPU = what&cgroups.CPU != 0 && g.has("cpuacct", map[bool]string{true: "cpu.stat", false: "cpuacct.usage"}[g.v2])
	u.hasCFS = u.hasCPU && g.has("cpu", "cpu.stat")
	u.hasPids = what&cgroups.Pids != 0 && g.has("pids", "pids.current")
	u.hasMem = len(stats.MemoryStats.Stats) > 0
	return u, nil
}

// cpuTime samples the CPU time of the group. It reads only the file with the CPU time, because it
// is called for each group over and over. A group that is gone, or has no such counter, is an
// error.
func (g group) cpuTime() (sample, error) {
	if !g.v2 {
		used, err := fscommon.GetCgroupParamUint(g.path("cpuacct"), "cpuacct.usage")
		return sample{time.Now(), used}, err
	}
	text, err := fscommon.GetCgroupParamString(g.dir, "cpu.stat")
	if err != nil {
		return sample{}, err
	}
	for line := range strings.Lines(text) {
		if usec, ok := strings.CutPrefix(line, "usage_usec "); ok {
			used, err := fscommon.ParseUint(strings.TrimSpace(usec), 10, 64)
			return sample{time.Now(), used * uint64(time.Microsecond)}, err
		}
	}
	return sample{}, fmt.Errorf("%s/cpu.stat has no usage_usec: %w", g.dir, errdefs.ErrNotFound)
}

// has reports whether a controller has a file for the group.
func (g group) has(controller, file string) bool {
	_, err := os.Stat(filepath.Join(g.path(controller), file))
	return err == nil
}

func (g group) stats(what cgroups.Controller) (*cgroups.Stats, error) {
	opts := &cgroups.StatsOptions{Controllers: what}
	if g.v2 {
		m, err := cgroup2.NewManager(&cgroups.Cgroup{}, g.dir)
		if err != nil {
			return nil, err
		}
		return m.Stats(opts)
	}
	paths := map[string]string{}
	for _, c := range []string{"memory", "cpu", "cpuacct", "pids", "blkio", "hugetlb"} {
		paths[c] = g.path(c)
	}
	m, err := cgroup1.NewManager(&cgroups.Cgroup{Resources: &cgroups.Resources{}}, paths)
	if err != nil {
		return nil, err
	}
	return m.Stats(opts)
}

// processes lists the processes of the group and of the groups below it.
func (g group) processes() ([]int, error) { return cgroups.GetAllPids(g.dir) }

// oomKills returns how often the OOM killer fired in the group.
func (g group) oomKills() (uint64, error) {
	if g.v2 {
		return cgroup2.OOMKillCount(g.dir)
	}
	return cgroup1.OOMKillCount(g.dir)
}

// limits are the limits of a group as they are now. Zero stands for no limit.
type limits struct {
	shares, period, quota uint64
	memory, reservation   uint64
	swap                  uint64 // of memory and swap together
}

// limits reads the limits of the group. Limits that cannot be read are zero.
func (g group) limits(u *usage) limits {
	l := limits{
		memory: finite(u.MemoryStats.Usage.Limit),
		swap:   finite(u.MemoryStats.SwapUsage.Limit),
	}
	number := func(controller, file string) uint64 {
		v, err := fscommon.GetCgroupParamUint(g.path(controller), file)
		if err != nil {
			return 0
		}
		return v
	}
	if !g.v2 {
		l.shares = number("cpu", "cpu.shares")
		l.period = number("cpu", "cpu.cfs_period_us")
		l.quota = number("cpu", "cpu.cfs_quota_us") // -1, no quota, reads as 0
		l.reservation = finite(number("memory", "memory.soft_limit_in_bytes"))
		return l
	}
	l.reservation = finite(number("memory", "memory.low"))
	if s, err := fscommon.GetCgroupParamString(g.dir, "cpu.max"); err == nil {
		quota, period, _ := strings.Cut(s, " ")
		l.quota, _ = strconv.ParseUint(quota, 10, 64) // "max" reads as 0
		l.period, _ = strconv.ParseUint(period, 10, 64)
	}
	return l
}

func finite(limit uint64) uint64 {
	if limit >= unlimited {
		return 0
	}
	return limit
}

// memory returns a value of memory.stat by its names on cgroup v2 and v1. On v1 the value that
// includes the groups below is preferred.
func (u *usage) memory(v2, v1 string) uint64 {
	all := u.MemoryStats.Stats
	if u.v2 {
		return all[v2]
	}
	if v, ok := all["total_"+v1]; ok && u.MemoryStats.UseHierarchy {
		return v
	}
	return all[v1]
}

// workingSet returns the memory that cannot be reclaimed at once: all of it except for file pages
// that were not used lately. The kubelet evicts pods by it.
func (u *usage) workingSet() uint64 {
	return less(u.MemoryStats.Usage.Usage, u.memory("inactive_file", "inactive_file"))
}

func (u *usage) rss() uint64    { return u.memory("anon", "rss") }
func (u *usage) mapped() uint64 { return u.memory("file_mapped", "mapped_file") }
func (u *usage) cache() uint64  { return u.memory("file", "cache") }

func (u *usage) kernel() uint64 {
	if !u.v2 {
		return u.MemoryStats.KernelUsage.Usage
	}
	all := u.MemoryStats.Stats
	return cmp.Or(all["kernel"], all["kernel_stack"]+all["slab"]) // "kernel" came with Linux 5.18
}

// faults returns all page faults and, among them, the major ones. CRI speaks of minor faults for
// the first, and everyone who fills in the field takes the kernel's pgfault.
func (u *usage) faults() (all, major uint64) {
	return u.memory("pgfault", "pgfault"), u.memory("pgmajfault", "pgmajfault")
}

// available returns the memory left up to the limit, if there is one.
func (u *usage) available() (uint64, bool) {
	limit := finite(u.MemoryStats.Usage.Limit)
	return less(limit, u.workingSet()), limit > 0
}

// swapLeft returns the swap that is left up to its limit, if there is one.
func (u *usage) swapLeft() (uint64, bool) {
	limit := finite(u.MemoryStats.SwapOnlyUsage.Limit)
	if !u.v2 {
		both, memory := finite(u.MemoryStats.SwapUsage.Limit), finite(u.MemoryStats.Usage.Limit)
		if both == 0 || memory == 0 {
			return 0, false
		}
		limit = less(both, memory)
	} else if u.MemoryStats.SwapOnlyUsage.Limit >= unlimited {
		return 0, false
	}
	return less(limit, u.swap()), true
}

// swap returns the swapped-out memory. On cgroup v1 it is the difference of two counters that are
// read one after the other, which may be below zero.
func (u *usage) swap() uint64 {
	if v := u.MemoryStats.SwapOnlyUsage.Usage; v <= math.MaxInt64 {
		return v
	}
	return 0
}

// less returns a-b, or 0 if b is larger: counters that are read one after the other do not agree
// exactly.
func less(a, b uint64) uint64 { return a - min(a, b) }
