// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kind is the kind of an event.
type kind string

const (
	created    kind = "PostCreateContainer"
	started    kind = "PostStartContainer"
	stopped    kind = "StopContainer"
	updated    kind = "PostUpdateContainer"
	removed    kind = "RemoveContainer"
	podUpdated kind = "PostUpdatePodSandbox"
	podStopped kind = "StopPodSandbox"
	podRemoved kind = "RemovePodSandbox"
)

// event is something that plug-ins are notified of after it has happened.
type event struct {
	kind      kind
	pod       *api.PodSandbox
	container *api.Container
}

func (e event) id() string {
	if e.container != nil {
		return e.container.GetId()
	}
	return e.pod.GetId()
}

// later queues an event, which is delivered after earlier ones. It does not block.
func (s *Service) later(e event) {
	if s.events.put(e) {
		s.cfg.Logger.Warn("NRI plug-ins are too slow: an event was dropped", "waiting", maxEvents)
	}
}

// deliver relays an event. An error of a plug-in is logged and has no other effect, because the
// event has already happened.
func (s *Service) deliver(ctx context.Context, e event) {
	err := s.relay(ctx, func(ctx context.Context) error {
		switch e.kind {
		case created:
			return s.plugins.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: e.pod, Container: e.container})
		case started:
			return s.plugins.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: e.pod, Container: e.container})
		case stopped:
			resp, err := s.plugins.StopContainer(ctx, &api.StopContainerRequest{Pod: e.pod, Container: e.container})
			s.ask(resp.GetUpdate(), nil)
			return err
		case updated:
			return s.plugins.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: e.pod, Container: e.container})
		case removed:
			return s.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: e.pod, Container: e.container})
		case podUpdated:
			return s.plugins.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: e.pod})
		case podStopped:
			return s.plugins.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: e.pod})
		case podRemoved:
			return s.plugins.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: e.pod})
		}
		return fmt.Errorf("there is no event %s", e.kind)
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("NRI plug-in answered an event with an error", "event", string(e.kind), "id", e.id(), "err", err)
	}
}

// synchronize gives a plug-in that connects everything that there is. The adaptation keeps relays
// from beginning until the plug-in takes part in them.
func (s *Service) synchronize(ctx context.Context, to adaptation.SyncCB) error {
	pods, containers := s.known.all()
	updates, err := to(ctx, pods, containers)
	if err != nil {
		return err
	}
	s.ask(updates, nil)
	return nil
}

// ask queues updates and evictions, which are carried out later. It does not block.
func (s *Service) ask(updates []*api.ContainerUpdate, evictions []*api.ContainerEviction) {
	for _, u := range updates {
		s.askOne(request{update: u}, u.GetContainerId())
	}
	for _, e := range evictions {
		s.askOne(request{evict: e}, e.GetContainerId())
	}
}

func (s *Service) askOne(r request, id string) {
	if !s.asked.offer(r) {
		s.cfg.Logger.Warn("too many requests of NRI plug-ins: request refused", "container", id, "waiting", maxRequests)
	}
}

func (s *Service) carryOut(ctx context.Context, r request) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if r.evict != nil {
		id := r.evict.GetContainerId()
		s.cfg.Logger.Warn("NRI plug-in evicts a container", "id", id, "reason", r.evict.GetReason())
		if err := s.cfg.Pods().StopContainer(ctx, id, evictGrace); err != nil {
			s.cfg.Logger.Warn("container evicted by an NRI plug-in not stopped", "id", id, "err", err)
		}
		return
	}
	if err := s.updateOne(ctx, r.update); err != nil && !r.update.GetIgnoreFailure() {
		s.cfg.Logger.Warn("update requested by an NRI plug-in failed", "id", r.update.GetContainerId(), "err", err)
	}
}

// update carries out the unsolicited updates of a plug-in, and returns those that failed.
func (s *Service) update(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	if len(updates) > maxRequests {
		return updates, fmt.Errorf("%d updates at a time are too many; the maximum is %d", len(updates), maxRequests)
	}
	var order []string
	byID := map[string][]*api.ContainerUpdate{}
	for _, u := range updates {
		id := u.GetContainerId()
		if byID[id] == nil {
			order = append(order, id)
		}
		byID[id] = append(byID[id], u)
	}
	var mu sync.Mutex
	var failed []*api.ContainerUpdate
	var g errgroup.Group
	g.SetLimit(requestsAtOnce)
	for _, id := range order { // side by side: one that hangs holds up its own container alone
		g.Go(func() error {
			for _, u := range byID[id] {
				if err := s.updateWithin(ctx, u); err != nil {
					s.cfg.Logger.Warn("update requested by an NRI plug-in failed", "id", id, "err", err)
					if !u.GetIgnoreFailure() {
						mu.Lock()
						failed = append(failed, u)
						mu.Unlock()
					}
				}
			}
			return nil
		})
	}
	_ = g.Wait()
	return failed, nil
}

func (s *Service) updateWithin(ctx context.Context, u *api.ContainerUpdate) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return s.updateOne(ctx, u)
}

func (s *Service) updateOne(ctx context.Context, u *api.ContainerUpdate) error {
	id := u.GetContainerId()
	r, err := resources(u.GetLinux().GetResources())
	if err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	if err := s.cfg.Pods().UpdateContainerResources(ctx, id, r); err != nil {
		return err
	}
	s.known.change(id, merge(r))
	return nil
}

// resources translates the resources requested by a plug-in. Fields that CRI cannot express are
// refused by name.
func resources(r *api.LinuxResources) (*runtimeapi.LinuxContainerResources, error) {
	mem, cpu := r.GetMemory(), r.GetCpu()
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"memory.reservation", mem.GetReservation() != nil},
		{"memory.kernel", mem.GetKernel() != nil},
		{"memory.kernel_tcp", mem.GetKernelTcp() != nil},
		{"memory.swappiness", mem.GetSwappiness() != nil},
		{"memory.disable_oom_killer", mem.GetDisableOomKiller() != nil},
		{"memory.use_hierarchy", mem.GetUseHierarchy() != nil},
		{"cpu.realtime_runtime", cpu.GetRealtimeRuntime() != nil},
		{"cpu.realtime_period", cpu.GetRealtimePeriod() != nil},
		{"blockio_class", r.GetBlockioClass() != nil},
		{"rdt_class", r.GetRdtClass() != nil},
		{"devices", len(r.GetDevices()) > 0},
		{"pids", r.GetPids() != nil},
	} {
		if f.set {
			return nil, fmt.Errorf("%s of a container that exists cannot be changed", f.name)
		}
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuPeriod:              int64(cpu.GetPeriod().GetValue()),
		CpuQuota:               cpu.GetQuota().GetValue(),
		CpuShares:              int64(cpu.GetShares().GetValue()), // checked when it is applied
		CpusetCpus:             cpu.GetCpus(),
		CpusetMems:             cpu.GetMems(),
		MemoryLimitInBytes:     mem.GetLimit().GetValue(),
		MemorySwapLimitInBytes: mem.GetSwap().GetValue(),
		Unified:                r.GetUnified(),
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out, nil
}
