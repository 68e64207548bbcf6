// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func resources(h Host, s *specs.Spec, in Container) ([]Degraded, error) {
	r := in.Config.GetLinux().GetResources()
	var err error
	if s.Linux.CgroupsPath, err = cgroupsPath(h, in.Sandbox.GetLinux().GetCgroupParent(), in.ID); err != nil {
		return nil, err
	}
	res, degraded, err := LinuxResources(h, r)
	if err != nil {
		return nil, err
	}
	s.Linux.Resources = res
	return append(degraded, oomScore(h, s, int(r.GetOomScoreAdj()))...), nil
}

// LinuxResources are the cgroup's settings.
func LinuxResources(h Host, r *runtimeapi.LinuxContainerResources) (*specs.LinuxResources, []Degraded, error) {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}, Memory: &specs.LinuxMemory{}}
	var degraded []Degraded
	if v := r.GetCpuPeriod(); v > 0 {
		p := uint64(v)
		out.CPU.Period = &p
	}
	if v := r.GetCpuQuota(); v != 0 {
		out.CPU.Quota = &v
	}
	if v := r.GetCpuShares(); v > 0 {
		p := uint64(v)
		out.CPU.Shares = &p
	}
	if v := r.GetMemoryLimitInBytes(); v < 0 {
		return nil, nil, fmt.Errorf("memory limit %d is negative: %w", v, errdefs.ErrInvalidArgument)
	} else if v > 0 {
		out.Memory.Limit = &v
		if h.SwapAccounting {
			swap := v // no swap beyond the limit, unless it is asked for
			if s := r.GetMemorySwapLimitInBytes(); s != 0 {
				swap = s
			}
			out.Memory.Swap = &swap
		} else if r.GetMemorySwapLimitInBytes() != 0 {
			degraded = append(degraded, Degraded{"memory swap limit", "this kernel does not account swap"})
		}
	}
	for _, p := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: p.GetPageSize(), Limit: p.GetLimit()})
	}
	if len(r.GetUnified()) > 0 {
		if !h.CgroupV2 {
			degraded = append(degraded, Degraded{"unified cgroup settings", "this host has cgroup v1"})
		} else {
			out.Unified = map[string]string{}
			for k, v := range r.GetUnified() {
				out.Unified[k] = v
			}
		}
	}
	return out, degraded, nil
}

// oomScore sets oom_score_adj, raised to what this process may give.
func oomScore(h Host, s *specs.Spec, adj int) []Degraded {
	if adj < h.MinOOMScoreAdj {
		why := fmt.Sprintf("lowering it needs CAP_SYS_RESOURCE, which this berth lacks; %d is used", h.MinOOMScoreAdj)
		s.Process.OOMScoreAdj = &h.MinOOMScoreAdj
		return []Degraded{{fmt.Sprintf("oom_score_adj %d", adj), why}}
	}
	s.Process.OOMScoreAdj = &adj
	return nil
}

func denyDevices() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
}

// devices gives a privileged container the host's, another one those it asks for.
func devices(h Host, s *specs.Spec, in Container) error {
	if in.Config.GetLinux().GetSecurityContext().GetPrivileged() && !in.PrivilegedWithoutHostDevices {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		for _, d := range h.Devices() {
			addDevice(s, d, d.Path)
		}
		return nil
	}
	s.Linux.Resources.Devices = denyDevices()
	for _, want := range in.Config.GetDevices() {
		found, err := in.Devices(want.GetHostPath())
		if err != nil {
			return fmt.Errorf("container %s: device %s: %w", in.Config.GetMetadata().GetName(), want.GetHostPath(), err)
		}
		for _, d := range found {
			dst := want.GetContainerPath() + d.Path[len(want.GetHostPath()):]
			addDevice(s, d, dst)
			major, minor := d.Major, d.Minor
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow: true, Type: d.Type, Major: &major, Minor: &minor, Access: want.GetPermissions(),
			})
		}
	}
	return nil
}

func addDevice(s *specs.Spec, d Device, dst string) {
	mode := os.FileMode(d.Mode)
	uid, gid := d.UID, d.GID
	s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: dst, Type: d.Type, Major: d.Major, Minor: d.Minor, FileMode: &mode, UID: &uid, GID: &gid})
}
