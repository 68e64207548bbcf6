// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/heart/feed"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	created = runtimeapi.ContainerState_CONTAINER_CREATED
)

// bubble is a controller in its world, inside a synctest bubble.
type bubble struct {
	*world.World
	*pod.Controller
	t     *testing.T
	feed  *feed.Feed
	life  *world.Life
	ports pod.Ports
	stop  func()
	names int // given to containers so far
}

// inBubble plays a test in a world of its own, with a berth in it.
func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, start(t, world.Free(), state.Loaded{})) })
}

// start begins a berth that finds the records of an earlier one. with changes what it works on.
func start(t *testing.T, w *world.World, loaded state.Loaded, with ...func(p *pod.Ports)) *bubble {
	t.Helper()
	b := &bubble{World: w, t: t, feed: feed.New(feed.Config{})}
	b.life = w.Begin(func(f exit.Fact) { b.Exited(f) })
	ports, _, err := b.life.Ports(noStore{}, "owner", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ports.Feed = b.feed
	for _, change := range with {
		change(&ports)
	}
	cfg := w.Config()
	cfg.Clock = b.life.Clock
	b.ports, b.Controller = ports, pod.New(cfg, ports)
	b.life.NotifyOOM(b.OOMNoted)
	b.Restore(loaded)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	b.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); b.life.Kill() })
	t.Cleanup(b.stop)
	return b
}

// withHooks plugs extensions in.
func withHooks(h pod.Hooks) func(p *pod.Ports) { return func(p *pod.Ports) { p.Hooks = h } }

// errFull is the error of a full disk.
var errFull = errors.New("no space left on device")

// noStore is a disk that keeps nothing: a test takes the records from the controller. What counts
// here is the order of commits, and that they may fail.
type noStore struct{}

func (noStore) Commit(...state.Change) error { return nil }

// restart starts a berth that finds the records of an earlier one, and returns once it has compared
// them with containerd.
func restart(t *testing.T, w *world.World, loaded state.Loaded) *bubble {
	t.Helper()
	b := start(t, w, loaded)
	if err := b.Relist(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return b
}

// kill ends the berth as SIGKILL does and returns the records that it leaves.
func (b *bubble) kill() state.Loaded {
	loaded := b.Records()
	b.life.Kill()
	b.stop()
	return loaded
}

// cutOff kills b while call is in a step of what it makes, and returns the berth that follows, once
// that one has compared everything with containerd and released what it does not keep. Without
// recorded, it finds the records from before the call: a backup was restored.
func cutOff(t *testing.T, b *bubble, step string, recorded bool, call func(ctx context.Context)) *bubble {
	t.Helper()
	backup := b.Records()
	release := b.Hold(step, "")
	go call(context.WithoutCancel(t.Context()))
	synctest.Wait()
	loaded := b.kill()
	release()
	if !recorded {
		loaded = backup
	}
	next := restart(t, b.World, loaded)
	time.Sleep(10 * time.Second) // a release lets settles go first
	synctest.Wait()
	return next
}

func config(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "u"},
		Hostname: "h",
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func (b *bubble) pod(name, handler string) string {
	b.t.Helper()
	id, err := b.RunPodSandbox(b.t.Context(), config(name), handler)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func ctr(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: world.Image},
		Command:  []string{"/app"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// create makes a container.
func (b *bubble) create(pod string, cfg *runtimeapi.ContainerConfig) string {
	b.t.Helper()
	id, err := b.CreateContainer(b.t.Context(), pod, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

// run makes a container and starts it.
func (b *bubble) run(pod, name string) string {
	b.t.Helper()
	id := b.create(pod, ctr(name))
	if err := b.StartContainer(b.t.Context(), id); err != nil {
		b.t.Fatal(err)
	}
	return id
}

// exit ends a process, and the kernel reports it.
func (b *bubble) exit(id string, code uint32) {
	b.t.Helper()
	if !b.Exit(id, code, false) {
		b.t.Errorf("%s does not run", id)
	}
}

// exitUnseen ends a process, and no witness reports it.
func (b *bubble) exitUnseen(id string, code uint32) {
	b.t.Helper()
	b.Swallow(0, 1)
	b.exit(id, code)
}

func (b *bubble) expect(id string, s runtimeapi.ContainerState, code int32, reason string) {
	b.t.Helper()
	st, err := b.ContainerStatus(b.t.Context(), id, false)
	if err != nil {
		b.t.Fatal(err)
	}
	if got := st.GetStatus(); got.GetState() != s || got.GetExitCode() != code || got.GetReason() != reason {
		b.t.Errorf("%s is %s %d %s, want %s %d %s", id, got.GetState(), got.GetExitCode(), got.GetReason(), s, code, reason)
	}
}

// expectLeft fails unless there is in the world what there was before; nil is nothing.
func (b *bubble) expectLeft(before []string) {
	b.t.Helper()
	if left := b.Left(); !slices.Equal(left, before) {
		b.t.Errorf("left: %q, want %q", left, before)
	}
}
