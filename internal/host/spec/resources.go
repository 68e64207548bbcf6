// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// resources sets the container's cgroup, its limits, and its oom_score_adj.
func resources(h Host, s *specs.Spec, in Container) ([]Degraded, error) {
	r := in.Config.GetLinux().GetResources()
	var err error
	if s.Linux.CgroupsPath, err = cgroupsPath(in.SystemdCgroup, in.Sandbox.GetLinux().GetCgroupParent(), in.ID); err != nil {
		return nil, err
	}
	res, degraded, err := LinuxResources(h, r)
	if err != nil {
		return nil, err
	}
	s.Linux.Resources = res
	if h.Classes != nil {
		c, err := h.Classes(in.Config.GetMetadata().GetName(), in.Config.GetAnnotations(), in.Sandbox.GetAnnotations())
		if err != nil {
			return nil, fmt.Errorf("annotations: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		if res.BlockIO = c.BlockIO; c.RDT != "" {
			s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: c.RDT}
		}
	}
	return append(degraded, oomScore(h, s, int(r.GetOomScoreAdj()))...), nil
}

// LinuxResources returns the cgroup settings of a container. If this host cannot apply a limit, the
// limit is reported as degraded if the container is no worse off without it; otherwise the error is
// ErrFailedPrecondition. An impossible value is ErrInvalidArgument.
func LinuxResources(h Host, r *runtimeapi.LinuxContainerResources) (*specs.LinuxResources, []Degraded, error) {
	if err := checkResources(r); err != nil {
		return nil, nil, err
	}
	out := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()},
		Memory: &specs.LinuxMemory{},
	}
	degraded, err := withoutControllers(h, r)
	if err != nil {
		return nil, nil, err
	}
	cpu := !slices.Contains(h.Lacks, "cpu")
	if v := r.GetCpuPeriod(); v > 0 && cpu {
		p := uint64(v)
		out.CPU.Period = &p
	}
	if v := r.GetCpuQuota(); v != 0 && cpu {
		out.CPU.Quota = &v
	}
	if v := r.GetCpuShares(); v > 0 && cpu {
		p := uint64(v)
		out.CPU.Shares = &p
	}
	if v := r.GetMemoryLimitInBytes(); v > 0 {
		out.Memory.Limit = &v
		if h.SwapAccounting {
			swap := v // no swap beyond the memory limit, unless the request has a limit for both
			if s := r.GetMemorySwapLimitInBytes(); s != 0 {
				swap = s
			}
			out.Memory.Swap = &swap
		} else if r.GetMemorySwapLimitInBytes() != 0 {
			degraded = append(degraded, Degraded{
				What: "memory swap limit",
				Why:  "this kernel does not account swap",
			})
		}
	}
	pages, lost, err := hugePages(h, r.GetHugepageLimits())
	if err != nil {
		return nil, nil, err
	}
	out.HugepageLimits = pages
	degraded = append(degraded, lost...)
	if len(r.GetUnified()) > 0 {
		if h.CgroupV2 {
			out.Unified = maps.Clone(r.GetUnified())
		} else {
			degraded = append(degraded, Degraded{
				What: "unified cgroup settings",
				Why:  "this host has cgroup v1",
			})
		}
	}
	return out, degraded, nil
}

// withoutControllers refuses the limits that need a controller which the host lacks. CPU shares
// limit nothing: they are left out, as the kubelet and `berth play` send some with every container.
// So is a period without a quota.
func withoutControllers(h Host, r *runtimeapi.LinuxContainerResources) ([]Degraded, error) {
	var degraded []Degraded
	for _, lacks := range h.Lacks {
		why := fmt.Sprintf("the cgroup v2 of this host has no controller %s, or it was not delegated to the user of this berth", lacks)
		var limit string
		switch {
		case lacks == "cpu" && r.GetCpuQuota() > 0:
			limit = "cpu_quota"
		case lacks == "cpuset" && r.GetCpusetCpus() != "":
			limit = "cpuset_cpus"
		case lacks == "cpuset" && r.GetCpusetMems() != "":
			limit = "cpuset_mems"
		case lacks == "memory" && r.GetMemoryLimitInBytes() > 0:
			limit = "memory_limit_in_bytes"
		}
		if limit != "" {
			return nil, fmt.Errorf("%s: the limit cannot be kept: %s: %w", limit, why, errdefs.ErrFailedPrecondition)
		}
		if lacks == "cpu" && r.GetCpuShares() > 0 {
			degraded = append(degraded, Degraded{What: fmt.Sprintf("cpu_shares %d", r.GetCpuShares()), Why: why})
		}
	}
	return degraded, nil
}

var pageSizeForm = regexp.MustCompile(`^[1-9][0-9]{0,5}(KB|MB|GB)$`)

// hugePages returns the limits that the hugetlb controller can keep. The kubelet sends a limit of 0
// for every page size of the node with every container: without the controller that asks for
// nothing that a container would miss. A limit above 0 withholds the pages of others from a
// container. If there is no controller, the limit is left out, unless RequireHugetlb is set: the
// container has the pages that it requests, and the scheduler counts them. A controller that does
// not know the page size is another thing: this host does not have such pages.
func hugePages(h Host, limits []*runtimeapi.HugepageLimit) (out []specs.LinuxHugepageLimit, degraded []Degraded, err error) {
	var lost []string
	controller := len(h.HugePages) > 0
	for _, l := range limits {
		size := l.GetPageSize()
		switch {
		case !pageSizeForm.MatchString(size):
			return nil, nil, fmt.Errorf("hugepage_limits: page size %q is not one, such as 2MB: %w", size, errdefs.ErrInvalidArgument)
		case slices.Contains(h.HugePages, size):
			out = append(out, specs.LinuxHugepageLimit{Pagesize: size, Limit: l.GetLimit()})
		case l.GetLimit() > 0 && !controller && !h.RequireHugetlb:
			degraded = append(degraded, Degraded{
				What: fmt.Sprintf("hugepage limit of %d bytes for %s", l.GetLimit(), size),
				Why:  h.whyNoHugePages(),
			})
		case l.GetLimit() > 0:
			return nil, nil, fmt.Errorf("hugepage_limits: a limit of %d bytes for pages of %s cannot be kept: %s: %w",
				l.GetLimit(), size, h.whyNoHugePages(), errdefs.ErrFailedPrecondition)
		default:
			lost = append(lost, size)
		}
	}
	if len(lost) > 0 {
		degraded = append(degraded, Degraded{
			What: "hugepage limit of 0 for " + strings.Join(lost, ", "),
			Why:  h.whyNoHugePages(),
		})
	}
	return out, degraded, nil
}

// KeptPages returns r without the hugepage limits that this host leaves out, so that the record
// contains only limits in effect. It returns the same errors about them as [LinuxResources].
func KeptPages(h Host, r *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, []Degraded, error) {
	pages, degraded, err := hugePages(h, r.GetHugepageLimits())
	if err != nil || len(degraded) == 0 {
		return r, nil, err
	}
	r = proto.CloneOf(r)
	r.HugepageLimits = nil
	for _, p := range pages {
		r.HugepageLimits = append(r.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: p.Pagesize, Limit: p.Limit})
	}
	return r, degraded, nil
}

func (h Host) whyNoHugePages() string {
	if len(h.HugePages) == 0 {
		return "this host does not have the hugetlb cgroup controller"
	}
	return "the hugetlb cgroup controller of this host only knows pages of " + strings.Join(h.HugePages, ", ")
}

// oomScore sets oom_score_adj, raised to the lowest value that this process may write.
func oomScore(h Host, s *specs.Spec, adj int) []Degraded {
	if adj >= h.MinOOMScoreAdj {
		s.Process.OOMScoreAdj = &adj
		return nil
	}
	s.Process.OOMScoreAdj = &h.MinOOMScoreAdj
	return []Degraded{{
		What: fmt.Sprintf("oom_score_adj %d", adj),
		Why:  fmt.Sprintf("lowering it needs CAP_SYS_RESOURCE, which this berth lacks; %d is used", h.MinOOMScoreAdj),
	}}
}
