// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/world"
)

// callTimeout is how long the client waits for one call, as the kubelet does. It is not a multiple
// of anything that berth waits for: of two timers that end at the same virtual instant Go lets a
// random one be first, and a seed would not replay.
const callTimeout = 2*time.Minute + 137*time.Microsecond

// call makes one CRI call, which gives a process a grace, and checks that it comes back within its
// bound.
func (s *Story) call(most bound, grace time.Duration, f func(ctx context.Context, b *Berth) error) error {
	b := s.Berth()
	if b == nil {
		return errNoBerth
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err := f(ctx, b)
	s.returned(b, most, began, grace, err)
	return err
}

func (s *Story) podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "uid-" + name, Attempt: s.attempt(name)},
		Hostname: name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func containerConfig(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: world.Image},
		Command:  []string{"/app"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// RunPod makes a sandbox with a runtime handler; "" is the default one.
func (s *Story) RunPod(name, handler string) error {
	return s.call(makes, 0, func(ctx context.Context, b *Berth) error {
		resp, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: s.podConfig(name), RuntimeHandler: handler})
		if err == nil {
			s.named(name, resp.GetPodSandboxId())
		}
		return err
	})
}

// Create makes a container POD/NAME.
func (s *Story) Create(name string) error { return s.CreateWith(name) }

// CreateWith makes a container with more capabilities than the usual ones.
func (s *Story) CreateWith(name string, capabilities ...string) error {
	pod, short, _ := strings.Cut(name, "/")
	config := containerConfig(short)
	config.Metadata.Attempt = s.attempt(name)
	config.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: capabilities}
	if s.Restored {
		config.Image.Image = world.Archive
	}
	return s.call(makes, 0, func(ctx context.Context, b *Berth) error {
		resp, err := b.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId:  s.ID(pod),
			SandboxConfig: s.podConfig(pod),
			Config:        config,
		})
		if err == nil {
			s.named(name, resp.GetContainerId())
		}
		return err
	})
}

// Start starts a container that was created.
func (s *Story) Start(name string) error { return s.startContainer(s.ID(name)) }

func (s *Story) startContainer(id string) error {
	return s.call(makes, 0, func(ctx context.Context, b *Berth) error {
		_, err := b.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
}

// Update changes the memory limit of a container.
func (s *Story) Update(name string, memory int64) error {
	return s.call(changes, 0, func(ctx context.Context, b *Berth) error {
		_, err := b.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: s.ID(name),
			Linux:       &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: memory},
		})
		return err
	})
}

// StopUnit stops a container, or a sandbox, which has no timeout.
func (s *Story) StopUnit(name string, timeout time.Duration) error {
	if isPod(name) {
		return s.stopPod(s.ID(name))
	}
	return s.stopContainer(s.ID(name), timeout)
}

func (s *Story) stopPod(id string) error {
	s.Watch.Asked(id)
	return s.call(stops, 0, func(ctx context.Context, b *Berth) error {
		_, err := b.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (s *Story) stopContainer(id string, timeout time.Duration) error {
	return s.call(stops, timeout, func(ctx context.Context, b *Berth) error {
		_, err := b.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(timeout.Seconds())})
		return err
	})
}

// Remove removes a container or a sandbox.
func (s *Story) Remove(name string) error {
	id := s.ID(name)
	if isPod(name) {
		return s.removePod(id)
	}
	return s.call(removes, 0, func(ctx context.Context, b *Berth) error {
		_, err := b.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

func (s *Story) removePod(id string) error {
	s.Watch.Asked(id)
	return s.call(removes, 0, func(ctx context.Context, b *Berth) error {
		_, err := b.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func isPod(name string) bool { return strings.HasPrefix(name, "p") && !strings.Contains(name, "/") }

// Status is the status of a container; nil when there is none.
func (s *Story) Status(name string) (st *runtimeapi.ContainerStatus, err error) {
	err = s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		before := s.Watch.Exited(s.ID(name))
		resp, err := b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: s.ID(name)})
		if errdefs.IsNotFound(err) {
			return nil
		}
		if st = resp.GetStatus(); st != nil {
			s.Watch.Status(st, before)
		}
		return err
	})
	return st, err
}

// Look checks every container's status. final is set if everything should be known by now.
func (s *Story) Look(final bool) error {
	return s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		pods, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, p := range pods.GetItems() {
			s.Watch.Sandbox(p)
		}
		if err := s.lookAtTimes(ctx, b); err != nil {
			return err
		}
		list, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		for _, c := range list.GetContainers() {
			before := s.Watch.Exited(c.GetId())
			resp, err := b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			switch {
			case errdefs.IsNotFound(err):
			case err != nil:
				return err
			case final:
				s.Watch.Final(resp.GetStatus())
			default:
				s.Watch.Status(resp.GetStatus(), before)
			}
		}
		return nil
	})
}

// lookBehindKernel checks that every container has ended of which a shim knows that it has.
func (s *Story) lookBehindKernel() error {
	return s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		list, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		for _, c := range list.GetContainers() {
			p := s.World.Process(c.GetId())
			if c.GetState() != exited && p != nil && p.Started && p.Ended && !p.Lost {
				s.Watch.Problem("%s has ended with %d, its shim knows it, and it is %s", world.Short(c.GetId()), p.Code, c.GetState())
			}
		}
		return err
	})
}

// made makes name unless it is there already, as a client does that lists first.
func (s *Story) made(name string, create func() error) error {
	id, err := s.find(name)
	if err != nil {
		return err
	}
	if id != "" {
		s.named(name, id)
		return nil
	}
	return create()
}

// find asks berth for the ID of a name; "" when there is none.
func (s *Story) find(name string) (id string, err error) {
	pod, short, _ := strings.Cut(name, "/")
	err = s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		if isPod(name) {
			list, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			for _, p := range list.GetItems() {
				if p.GetMetadata().GetName() == name && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
					id = p.GetId()
				}
			}
			return err
		}
		list, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: s.ID(pod)}})
		for _, c := range list.GetContainers() {
			if c.GetMetadata().GetName() == short {
				id = c.GetId()
			}
		}
		return err
	})
	return id, err
}

// started starts name unless it was started already.
func (s *Story) started(name string) error {
	st, err := s.Status(name)
	if err != nil || st.GetStartedAt() != 0 {
		return err
	}
	return s.Start(name)
}
