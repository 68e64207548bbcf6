// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UserOf returns the user and the groups of the first process of a container, as CRI reports them.
func UserOf(s *specs.Spec) *runtimeapi.LinuxContainerUser {
	if s == nil || s.Process == nil {
		return nil
	}
	u := &runtimeapi.LinuxContainerUser{
		Uid: int64(s.Process.User.UID),
		Gid: int64(s.Process.User.GID),
	}
	for _, g := range s.Process.User.AdditionalGids {
		u.SupplementalGroups = append(u.SupplementalGroups, int64(g))
	}
	return u
}

// ResourcesOf returns the resources of a container as CRI reports them: the values applied to its
// cgroup, which may differ from those requested. A limit that is not set is 0, which means "not
// specified".
func ResourcesOf(s *specs.Spec) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if s == nil {
		return out
	}
	if s.Process != nil && s.Process.OOMScoreAdj != nil {
		out.OomScoreAdj = int64(*s.Process.OOMScoreAdj)
	}
	if s.Linux == nil || s.Linux.Resources == nil {
		return out
	}
	r := s.Linux.Resources
	if c := r.CPU; c != nil {
		out.CpuPeriod, out.CpuShares = int64(valueOf(c.Period)), int64(valueOf(c.Shares)) // they were int64 in the request
		out.CpuQuota = valueOf(c.Quota)
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
	}
	if m := r.Memory; m != nil {
		out.MemoryLimitInBytes, out.MemorySwapLimitInBytes = valueOf(m.Limit), valueOf(m.Swap)
	}
	for _, l := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: l.Pagesize, Limit: l.Limit})
	}
	out.Unified = maps.Clone(r.Unified)
	return out
}

// valueOf returns the value at p, or 0 for nil.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
