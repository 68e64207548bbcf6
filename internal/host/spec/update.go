// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxResources is how many bytes the resources of one container may have, as a message.
const MaxResources = 64 << 10

// CheckResources refuses resources that no host can keep. The error is ErrInvalidArgument and names
// the field.
func CheckResources(r *runtimeapi.LinuxContainerResources) error {
	for _, c := range []struct {
		field         string
		have, atLeast int64
	}{
		{"cpu_period", r.GetCpuPeriod(), 0},
		{"cpu_quota", r.GetCpuQuota(), -1},
		{"cpu_shares", r.GetCpuShares(), 0},
		{"memory_limit_in_bytes", r.GetMemoryLimitInBytes(), 0},
		{"memory_swap_limit_in_bytes", r.GetMemorySwapLimitInBytes(), -1},
		{"oom_score_adj", r.GetOomScoreAdj(), -1000},
	} {
		if c.have < c.atLeast {
			return fmt.Errorf("linux.%s %d is less than %d: %w", c.field, c.have, c.atLeast, errdefs.ErrInvalidArgument)
		}
	}
	if adj := r.GetOomScoreAdj(); adj > 1000 {
		return fmt.Errorf("linux.oom_score_adj %d is more than 1000: %w", adj, errdefs.ErrInvalidArgument)
	}
	memory, swap := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	if swap > 0 && swap < memory {
		return fmt.Errorf("linux.memory_swap_limit_in_bytes %d is less than the memory limit %d, which it includes: %w",
			swap, memory, errdefs.ErrInvalidArgument)
	}
	if n := proto.Size(r); n > MaxResources {
		return tooMuch("linux", n, MaxResources, "bytes")
	}
	return checkSettings(r)
}

// MergeResources returns base with every field that change sets. A field that is zero or empty is
// not set: CRI's way to leave a value as it is. Hugepage limits are merged by page size, and
// unified settings by key. Both arguments may be nil, and neither is changed.
func MergeResources(base, change *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	proto.Merge(out, base)
	pages := out.HugepageLimits
	out.HugepageLimits = nil
	proto.Merge(out, change) // scalars: those that are set; the map: by key
	for _, l := range out.GetHugepageLimits() {
		pages = slices.DeleteFunc(pages, func(old *runtimeapi.HugepageLimit) bool { return old.GetPageSize() == l.GetPageSize() })
	}
	out.HugepageLimits = append(pages, out.HugepageLimits...)
	return out
}

// UpdatedResources returns only the cgroup settings that updates change in a container made with
// config, because other settings may come from an extension of the node. It returns the errors of
// [LinuxResources], and of [CheckResources] for both together.
func UpdatedResources(h Host, config, updates *runtimeapi.LinuxContainerResources) (*specs.LinuxResources, []Degraded, error) {
	all := MergeResources(config, updates)
	if err := CheckResources(all); err != nil {
		return nil, nil, err
	}
	all.HugepageLimits = updates.GetHugepageLimits()
	if updates.GetUnified() == nil {
		all.Unified = nil
	}
	out, degraded, err := LinuxResources(h, all)
	if err != nil {
		return nil, nil, err
	}
	if updates.GetCpuPeriod() == 0 {
		out.CPU.Period = nil
	}
	if updates.GetCpuQuota() == 0 {
		out.CPU.Quota = nil
	}
	if updates.GetCpuShares() == 0 {
		out.CPU.Shares = nil
	}
	out.CPU.Cpus, out.CPU.Mems = updates.GetCpusetCpus(), updates.GetCpusetMems()
	if updates.GetMemoryLimitInBytes() == 0 && updates.GetMemorySwapLimitInBytes() == 0 {
		out.Memory = &specs.LinuxMemory{}
	}
	maps.DeleteFunc(out.Unified, func(k, _ string) bool { _, set := updates.GetUnified()[k]; return !set })
	return out, degraded, nil
}

// RestoredResources returns the cgroup settings that undo change, which was refused after a part of
// it may have been set. config is the original configuration of the container, and updates the
// changes since. If the container had no limit before, the limit is lifted; a set of processors or
// a unified setting that it did not have stays as it is, because its former value is unknown.
func RestoredResources(h Host, config, updates, change *runtimeapi.LinuxContainerResources) (*specs.LinuxResources, error) {
	had := MergeResources(config, updates)
	back := &runtimeapi.LinuxContainerResources{}
	if change.GetCpuPeriod() != 0 {
		back.CpuPeriod = had.GetCpuPeriod()
	}
	if change.GetCpuQuota() != 0 {
		back.CpuQuota = cmp.Or(had.GetCpuQuota(), -1)
	}
	if change.GetCpuShares() != 0 {
		back.CpuShares = cmp.Or(had.GetCpuShares(), 1024) // the kernel's default
	}
	if change.GetCpusetCpus() != "" {
		back.CpusetCpus = had.GetCpusetCpus()
	}
	if change.GetCpusetMems() != "" {
		back.CpusetMems = had.GetCpusetMems()
	}
	memory := change.GetMemoryLimitInBytes() != 0 || change.GetMemorySwapLimitInBytes() != 0
	if memory {
		back.MemoryLimitInBytes, back.MemorySwapLimitInBytes = had.GetMemoryLimitInBytes(), had.GetMemorySwapLimitInBytes()
	}
	for k := range change.GetUnified() {
		if v, ok := had.GetUnified()[k]; ok {
			if back.Unified == nil {
				back.Unified = map[string]string{}
			}
			back.Unified[k] = v
		}
	}
	out, _, err := UpdatedResources(h, config, back)
	if err == nil && memory && out.Memory.Limit == nil {
		unlimited := int64(-1)
		if out.Memory.Limit = &unlimited; h.SwapAccounting {
			out.Memory.Swap = &unlimited
		}
	}
	return out, err
}

// ChangeResources sets in s the values that r contains, and leaves the rest as it is.
func ChangeResources(s *specs.Spec, r *specs.LinuxResources) {
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	to := s.Linux.Resources
	if to.CPU == nil {
		to.CPU = &specs.LinuxCPU{}
	}
	if to.Memory == nil {
		to.Memory = &specs.LinuxMemory{}
	}
	set(&to.CPU.Period, r.CPU.Period)
	set(&to.CPU.Quota, r.CPU.Quota)
	set(&to.CPU.Shares, r.CPU.Shares)
	if r.CPU.Cpus != "" {
		to.CPU.Cpus = r.CPU.Cpus
	}
	if r.CPU.Mems != "" {
		to.CPU.Mems = r.CPU.Mems
	}
	set(&to.Memory.Limit, r.Memory.Limit)
	set(&to.Memory.Swap, r.Memory.Swap)
	for _, l := range r.HugepageLimits {
		to.HugepageLimits = slices.DeleteFunc(to.HugepageLimits, func(old specs.LinuxHugepageLimit) bool { return old.Pagesize == l.Pagesize })
		to.HugepageLimits = append(to.HugepageLimits, l)
	}
	if len(r.Unified) > 0 {
		all := map[string]string{}
		maps.Copy(all, to.Unified)
		maps.Copy(all, r.Unified)
		to.Unified = all
	}
}

func set[T any](to **T, v *T) {
	if v != nil {
		*to = v
	}
}

// ChangeOOMScore sets the oom_score_adj of a process that is not started yet, raised to the lowest
// value that this process may write.
func ChangeOOMScore(h Host, s *specs.Spec, adj int64) []Degraded {
	if s.Process == nil {
		s.Process = &specs.Process{}
	}
	return oomScore(h, s, int(adj))
}
