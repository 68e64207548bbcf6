// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// plugin is an extension that notes when it is called.
type plugin struct {
	mu    sync.Mutex
	calls []string
	fail  map[string]error
	hang  chan struct{} // Ended waits for it
}

func (p *plugin) note(what string, t pod.Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what != "sandbox run" && what != "ended" || t.ID != t.PodID {
		what += " of a container"
	}
	p.calls = append(p.calls, what)
	return p.fail[what]
}

func (p *plugin) AdjustSpec(_ context.Context, t pod.Target, _ *runtimeapi.ContainerConfig, s *specs.Spec) error {
	s.Annotations["adjusted"] = "yes"
	return p.note("adjust", t)
}
func (p *plugin) SandboxRun(_ context.Context, t pod.Target) error { return p.note("sandbox run", t) }
func (p *plugin) Created(context.Context, pod.Target)              {}
func (p *plugin) Starting(context.Context, pod.Target) error       { return nil }
func (p *plugin) Started(_ context.Context, t pod.Target)          { _ = p.note("started", t) }
func (p *plugin) Ended(ctx context.Context, t pod.Target, f exit.Fact) error {
	if f.Zero() {
		return errors.New("no exit was given")
	}
	select {
	case <-p.hang:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.note("ended", t)
}

// PROPERTIES 27: a hook that hangs delays neither the exit nor the release.
func TestHooksAreCalledInTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{hang: make(chan struct{})}
		b := start(t, world.Free(), state.Loaded{}, withHooks(p))
		sb := b.pod("p1", "")
		c := b.run(sb, "c1")
		if b.Spec(c).Annotations["adjusted"] != "yes" {
			t.Error("the adjusted spec was not used")
		}
		b.exit(c, 42)
		// A plug-in that hangs delays neither the truth nor the release.
		time.Sleep(time.Second)
		b.expect(c, exited, 42, "Error")
		if b.Held(c) != "" {
			t.Error("the release waits for a plug-in")
		}
		close(p.hang)
		synctest.Wait() // else the end of the sandbox, on a lane of its own, may be told first
		if err := b.RemovePodSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{"sandbox run", "adjust of a container", "started of a container", "ended of a container", "ended"}
		if !slices.Equal(p.calls, want) {
			t.Errorf("called %q, want %q", p.calls, want)
		}
	})
}

func TestAHookThatRefusesUndoesWhatWasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{hang: make(chan struct{}), fail: map[string]error{"sandbox run": errors.New("not here")}}
		close(p.hang)
		b := start(t, world.Free(), state.Loaded{}, withHooks(p))
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
			t.Fatal("it succeeded")
		}
		p.fail = map[string]error{"adjust of a container": errors.New("not so")}
		sb := b.pod("p1", "")
		if _, err := b.CreateContainer(t.Context(), sb, ctr("c1")); err == nil {
			t.Fatal("it succeeded")
		}
		if err := b.RemovePodSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(nil)
	})
}

// gatekeeper is an extension that looks at what others see while it is asked.
type gatekeeper struct {
	plugin
	look func(what string, t pod.Target)
}

func (g *gatekeeper) SandboxRun(_ context.Context, t pod.Target) error {
	g.look("sandbox run", t)
	return nil
}
func (g *gatekeeper) AdjustSpec(_ context.Context, t pod.Target, _ *runtimeapi.ContainerConfig, _ *specs.Spec) error {
	g.look("adjust", t)
	return nil
}
func (g *gatekeeper) Created(_ context.Context, t pod.Target) { g.look("created", t) }
func (g *gatekeeper) Starting(_ context.Context, t pod.Target) error {
	g.look("starting", t)
	return g.fail["starting"]
}

// A sandbox was READY, and could get containers, before the extensions had agreed to it.
func TestWhatAHookIsAskedAboutIsNotThereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatekeeper{plugin: plugin{hang: make(chan struct{}), fail: map[string]error{}}}
		close(g.hang)
		b := start(t, world.Free(), state.Loaded{}, withHooks(g))
		var asked []string
		g.look = func(what string, target pod.Target) {
			asked = append(asked, what)
			switch what {
			case "sandbox run":
				if len(b.ListPodSandbox(nil)) > 0 || len(target.IPs) == 0 || target.PodConfig.GetMetadata().GetName() != "p1" {
					t.Errorf("listed %v, target %+v", b.ListPodSandbox(nil), target)
				}
				if _, err := b.CreateContainer(t.Context(), target.ID, ctr("c0")); err == nil {
					t.Error("a container was created in it")
				}
			case "adjust":
				if st, err := b.ContainerStatus(t.Context(), target.ID, false); !errdefs.IsNotFound(err) {
					t.Errorf("got %v %v", st, err)
				}
				if list := b.ListContainers(&runtimeapi.ContainerFilter{Id: target.ID}); len(list) > 0 {
					t.Errorf("listed %v", list)
				}
			case "starting":
				st, err := b.ContainerStatus(t.Context(), target.ID, false)
				if err != nil || st.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || target.Process.Pid == 0 {
					t.Errorf("got %v %v, target %+v", st, err, target)
				}
			}
		}
		sb := b.pod("p1", "")
		b.run(sb, "c1")
		if want := []string{"sandbox run", "adjust", "created", "starting"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q, want %q", asked, want)
		}
		g.fail["starting"] = errors.New("not now")
		c := b.create(sb, ctr("c2"))
		if err := b.StartContainer(t.Context(), c); err == nil {
			t.Error("a start that a hook refused succeeded")
		}
		synctest.Wait() // the lane settles it
		b.expect(c, exited, 128, "StartError")
	})
}
