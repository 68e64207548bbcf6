// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// callTimeout is a client's patience with one call, as the kubelet's.
const callTimeout = 2 * time.Minute

// Story is a world, the berth in it, and a client that knows its pods and containers by names: p1, and p1/c1 or c1.
type Story struct {
	World *World
	Watch *Watch
	ctx   context.Context
	dir   string

	mu    sync.Mutex
	berth *Berth
	ids   map[string]string // by name: of the last one of that name
	wg    sync.WaitGroup    // subscribers and calls in the background
	quit  context.CancelFunc

	onDeath func() // is called once, before the berth after one that died boots
}

// NewStory begins in an empty world. dir is for berth's state.
func NewStory(ctx context.Context, dir string, seed uint64) *Story {
	w := NewWorld(seed)
	return &Story{World: w, Watch: NewWatch(w), ctx: ctx, dir: dir, ids: map[string]string{}, quit: func() {}}
}

// Berth is the one that runs, or nil.
func (s *Story) Berth() *Berth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.berth
}

// ID of a name; "" when it never was made.
func (s *Story) ID(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[name]
}

func (s *Story) called(name, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[name] = id
	if _, short, ok := strings.Cut(name, "/"); ok {
		s.ids[short] = id
	}
}

// Boot starts a berth, if none runs, and subscribes to its events.
func (s *Story) Boot() error {
	if b := s.Berth(); b != nil {
		if !b.Dead() {
			return nil
		}
		if err := s.Kill(); err != nil {
			return err
		}
		if s.onDeath != nil {
			s.onDeath()
			s.onDeath = nil
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	defer cancel()
	b, err := s.World.Boot(ctx, s.dir, slog.New(slog.NewTextHandler(journal{s.World}, nil)))
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	s.mu.Lock()
	s.berth = b
	s.mu.Unlock()
	s.Subscribe()
	return nil
}

// Subscribe ends the subscription there is and makes a new one.
func (s *Story) Subscribe() {
	s.Unsubscribe()
	b := s.Berth()
	if b == nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.quit = cancel
	s.mu.Unlock()
	sub := b.Core.Subscribe()
	s.wg.Go(func() { s.Watch.Follow(ctx, sub) })
}

// Unsubscribe ends the subscription.
func (s *Story) Unsubscribe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quit()
}

// Kill ends the berth as SIGKILL does; Stop as SIGTERM.
func (s *Story) Kill() error { return s.end((*Berth).Kill) }

// Stop ends the berth as SIGTERM does.
func (s *Story) Stop() error { return s.end((*Berth).Stop) }

func (s *Story) end(how func(*Berth) error) error {
	b := s.Berth()
	if b == nil {
		return nil
	}
	err := how(b)
	s.mu.Lock()
	s.berth = nil
	s.mu.Unlock()
	return err
}

var errNoBerth = errors.New("there is no berth")

// Background makes a call beside the story; Wait waits for all of them.
func (s *Story) Background(call func() error) { s.wg.Go(func() { s.turn(); _ = call() }) }

// turn waits until it is the story's turn to do something.
func (s *Story) turn() { s.World.turns.take("client") }

// call is one CRI call with a client's patience.
func (s *Story) call(f func(ctx context.Context, b *Berth) error) error {
	b := s.Berth()
	if b == nil {
		return errNoBerth
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	return f(ctx, b)
}

func podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "uid-" + name}, Hostname: name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func containerConfig(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: image}, Command: []string{"/app"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// RunPod makes a sandbox on a runtime handler ("" for the default).
func (s *Story) RunPod(name, handler string) error {
	return s.call(func(ctx context.Context, b *Berth) error {
		resp, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig(name), RuntimeHandler: handler})
		if err == nil {
			s.called(name, resp.GetPodSandboxId())
		}
		return err
	})
}

// Create makes a container POD/NAME.
func (s *Story) Create(name string) error {
	pod, short, _ := strings.Cut(name, "/")
	return s.call(func(ctx context.Context, b *Berth) error {
		resp, err := b.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: s.ID(pod), SandboxConfig: podConfig(pod), Config: containerConfig(short)})
		if err == nil {
			s.called(name, resp.GetContainerId())
		}
		return err
	})
}

// Start starts a container that was made.
func (s *Story) Start(name string) error {
	return s.call(func(ctx context.Context, b *Berth) error {
		_, err := b.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: s.ID(name)})
		return err
	})
}

// StopUnit stops a container, or a sandbox if there is no timeout to wait.
func (s *Story) StopUnit(name string, timeout time.Duration) error {
	return s.call(func(ctx context.Context, b *Berth) error {
		if isPod(name) {
			_, err := b.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.ID(name)})
			return err
		}
		_, err := b.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: s.ID(name), Timeout: int64(timeout.Seconds())})
		return err
	})
}

// Remove removes a container or a sandbox.
func (s *Story) Remove(name string) error {
	return s.call(func(ctx context.Context, b *Berth) error {
		if isPod(name) {
			_, err := b.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID(name)})
			return err
		}
		_, err := b.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: s.ID(name)})
		return err
	})
}

func isPod(name string) bool { return strings.HasPrefix(name, "p") && !strings.Contains(name, "/") }

// Status of a container; nil when there is none.
func (s *Story) Status(name string) (st *runtimeapi.ContainerStatus, err error) {
	err = s.call(func(ctx context.Context, b *Berth) error {
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

// Look checks every container's status; final says that all should be known by now.
func (s *Story) Look(final bool) error {
	return s.call(func(ctx context.Context, b *Berth) error {
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

// settleTime is longer than the longest back-off with the attempt after it, and than a creation that is given up with the two
// relists that find what containerd made of it all the same.
const settleTime = 17 * time.Minute

// Finish ends the story: whatever was broken is mended, what is known by then must be true, and when every pod is removed
// nothing may be left.
func (s *Story) Finish() error {
	s.World.KillAt(0, false)
	s.World.Heal()
	if s.World.ContainerdDown() {
		s.World.StartContainerd()
	}
	if err := s.Boot(); err != nil {
		return err
	}
	s.Subscribe()
	time.Sleep(settleTime)
	if err := s.Look(true); err != nil {
		return err
	}
	for _, l := range s.Berth().Core.Pods.Lanes() {
		s.Watch.Problem("lane %s is not idle: %+v", short(l.ID), l)
	}
	err := s.call(func(ctx context.Context, b *Berth) error {
		list, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, p := range list.GetItems() {
			if _, err := b.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				s.Watch.Problem("pod %s cannot be removed: %v", short(p.GetId()), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	time.Sleep(time.Minute)
	s.leftovers()
	s.Unsubscribe()
	err = s.Stop()
	s.wg.Wait()
	return err
}

func (s *Story) leftovers() {
	for _, l := range s.World.Left() {
		s.Watch.Problem("left: %s", l)
	}
	b := s.Berth()
	if all, err := b.store.Load(); err != nil || len(all.Sandboxes)+len(all.Containers)+len(all.Damaged) > 0 {
		s.Watch.Problem("left: %d sandbox records, %d container records, %d damaged (%v)", len(all.Sandboxes), len(all.Containers), len(all.Damaged), err)
	}
	for _, base := range []string{"state/sandboxes", "state/io", "root/volumes"} {
		entries, _ := os.ReadDir(filepath.Join(s.dir, base))
		for _, e := range entries {
			s.Watch.Problem("left: directory %s/%s", base, short(e.Name()))
		}
	}
}

// Abandon ends what runs, after a failure.
func (s *Story) Abandon() {
	s.World.KillAt(0, false)
	s.World.Heal()
	_ = s.Kill()
	s.Unsubscribe()
	s.wg.Wait()
}

// Report is what went wrong, with the world's journal; "" when all is well.
func (s *Story) Report(err error) string {
	problems := s.Watch.Problems()
	if err == nil && len(problems) == 0 {
		return ""
	}
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "%v\n", err)
	}
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	names := slices.Sorted(maps.Keys(s.ids))
	for _, n := range names {
		fmt.Fprintf(&b, "  %s is %s\n", n, short(s.ids[n]))
	}
	s.World.book.Lock()
	defer s.World.book.Unlock()
	fmt.Fprintf(&b, "what happened:\n%s\n", strings.Join(s.World.book.lines, "\n"))
	return b.String()
}

// made makes name unless it is there already, as a client that lists first does.
func (s *Story) made(name string, create func() error) error {
	id, err := s.find(name)
	if err != nil {
		return err
	}
	if id != "" {
		s.called(name, id)
		return nil
	}
	return create()
}

// find asks berth for the ID of a name; "" when there is none.
func (s *Story) find(name string) (id string, err error) {
	pod, short, _ := strings.Cut(name, "/")
	err = s.call(func(ctx context.Context, b *Berth) error {
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
