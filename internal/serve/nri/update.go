// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/host/spec"
)

// UpdateContainer changes the resources of a container, as adjusted by plug-ins. It is called
// instead of the controller's UpdateContainerResources.
func (s *Service) UpdateContainer(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	pods := s.cfg.Pods()
	t, err := pods.Target(id)
	if err != nil || t.ID == t.PodID || spec.CheckResources(asked) != nil {
		return pods.UpdateContainerResources(ctx, id, asked) // for its error
	}
	adjusted, err := s.Updating(ctx, t, asked)
	if err != nil {
		return fmt.Errorf("update container %s: %w", t.ID, err)
	}
	if err := pods.UpdateContainerResources(ctx, t.ID, adjusted); err != nil {
		return err
	}
	s.Updated(ctx, t, adjusted)
	return nil
}

// UpdatePod records the resources of a pod, which plug-ins may refuse. It is called instead of the
// controller's UpdatePodSandboxResources.
func (s *Service) UpdatePod(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error {
	pods := s.cfg.Pods()
	t, err := pods.Target(id)
	if err != nil || t.ID != t.PodID || !t.Running {
		return pods.UpdatePodSandboxResources(ctx, id, overhead, resources) // for its error
	}
	if err := s.UpdatingPod(ctx, t, overhead, resources); err != nil {
		return fmt.Errorf("update sandbox %s: %w", t.ID, err)
	}
	if err := pods.UpdatePodSandboxResources(ctx, t.ID, overhead, resources); err != nil {
		return err
	}
	if t, err = pods.Target(t.ID); err == nil { // it may have been removed meanwhile
		s.UpdatedPod(ctx, t)
	}
	return nil
}

// Updating relays UpdateContainer and returns the resources as changed by the plug-ins. It is
// called before the resources of a container are changed because a client of CRI asks for that; an
// error of a plug-in fails the call.
func (s *Service) Updating(ctx context.Context, t pod.Target, r *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error) {
	var resp *api.UpdateContainerResponse
	var evict []*api.ContainerEviction
	err := s.relay(ctx, func(ctx context.Context) (err error) {
		resp, err = s.plugins.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod:            s.podOf(t),
			Container:      s.known.container(t.ID),
			LinuxResources: fromCRI(r),
		})
		evict = s.evicted
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("NRI: %w", err)
	}
	var others []*api.ContainerUpdate
	for _, u := range resp.GetUpdate() {
		switch {
		case u == nil: // without an answer of a plug-in
		case u.GetContainerId() != t.ID:
			others = append(others, u)
		default:
			changed, err := resources(u.GetLinux().GetResources())
			if err != nil {
				return nil, fmt.Errorf("NRI: adjustments by plug-ins: %w", err)
			}
			changed.OomScoreAdj = r.GetOomScoreAdj() // NRI does not have it
			r = changed
		}
	}
	s.ask(others, evict)
	return r, nil
}

// Updated relays PostUpdateContainer, later. It is called after the resources have been changed.
func (s *Service) Updated(_ context.Context, t pod.Target, r *runtimeapi.LinuxContainerResources) {
	ct, _ := s.known.change(t.ID, merge(r))
	s.later(event{kind: updated, pod: s.podOf(t), container: ct})
}

// UpdatingPod relays UpdatePodSandbox. It is called before the kubelet's values for the resources
// of a pod are recorded; nil leaves a part as it is. An error of a plug-in fails the call.
func (s *Service) UpdatingPod(ctx context.Context, t pod.Target, overhead, resources *runtimeapi.LinuxContainerResources) error {
	err := s.relay(ctx, func(ctx context.Context) error {
		_, err := s.plugins.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod:                    s.podOf(t),
			OverheadLinuxResources: podResources(overhead),
			LinuxResources:         podResources(resources),
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	return nil
}

// UpdatedPod relays PostUpdatePodSandbox, later. It is called after the resources were recorded,
// with the new record.
func (s *Service) UpdatedPod(_ context.Context, t pod.Target) {
	s.known.changePod(t.PodID, func(p *api.PodSandbox) {
		p.Linux.PodOverhead, p.Linux.PodResources = podResources(t.PodOverhead), podResources(t.PodResources)
	})
	s.later(event{kind: podUpdated, pod: s.podOf(t)})
}

// podResources translates the resources of a pod for plug-ins; nil stays nil.
func podResources(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	return fromCRI(r)
}

// merge returns a change of a container by which it has the resources that r sets, and keeps all
// others, as the container itself does.
func merge(r *runtimeapi.LinuxContainerResources) func(*api.Container) {
	return func(c *api.Container) {
		if c.GetLinux() == nil {
			return
		}
		change := fromCRI(r)
		if c.Linux.Resources == nil {
			c.Linux.Resources = &api.LinuxResources{}
		}
		has := c.Linux.Resources
		has.HugepageLimits = slices.DeleteFunc(has.GetHugepageLimits(), func(old *api.HugepageLimit) bool {
			return slices.ContainsFunc(change.GetHugepageLimits(), func(l *api.HugepageLimit) bool { return l.GetPageSize() == old.GetPageSize() })
		})
		proto.Merge(has, change) // fields that change does not set are absent or empty there
	}
}

// fromCRI translates resources for plug-ins. Fields that CRI leaves out are 0 there.
func fromCRI(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	out := &api.LinuxResources{
		Memory:  &api.LinuxMemory{},
		Cpu:     &api.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()},
		Unified: r.GetUnified(),
	}
	if v := r.GetCpuShares(); v > 0 {
		out.Cpu.Shares = api.UInt64(v)
	}
	if v := r.GetCpuPeriod(); v > 0 {
		out.Cpu.Period = api.UInt64(v)
	}
	if v := r.GetCpuQuota(); v != 0 {
		out.Cpu.Quota = api.Int64(v)
	}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		out.Memory.Limit = api.Int64(v)
	}
	if v := r.GetMemorySwapLimitInBytes(); v != 0 {
		out.Memory.Swap = api.Int64(v)
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out
}
