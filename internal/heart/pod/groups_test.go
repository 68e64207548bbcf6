// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// grouper is a runtime that puts every sandbox without a process into one group.
type grouper struct {
	pod.Runtime
	joined, rejoined, left, started []string

	hangs bool // the shim of the group
}

func (g *grouper) Hangs(context.Context, string) bool { return g.hangs }

func (g *grouper) JoinGroup(_ context.Context, id string, _ pod.Handler) string {
	g.joined = append(g.joined, id)
	return "group-1"
}

func (g *grouper) RejoinGroup(id, group string, _ pod.Handler, stays bool) {
	if group == "group-1" && stays {
		g.rejoined = append(g.rejoined, id)
	}
}

func (g *grouper) LeaveGroup(id string) { g.left = append(g.left, id) }

func (g *grouper) StartShim(ctx context.Context, r pod.SandboxRequest) error {
	if r.Group == "group-1" {
		g.started = append(g.started, r.ID)
	}
	return g.Runtime.StartShim(ctx, r)
}

func (g *grouper) plugIn(p *pod.Ports) { g.Runtime, p.Runtime = p.Runtime, g }

// PROPERTIES 4: which sandboxes share a shim is on record before the shim is asked for: the next
// berth is told of it before anything else, and starts a shim that has died for the same group.
func TestTheGroupOfAShimIsOnRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, first *bubble) {
		first.stop()
		g := &grouper{}
		b := start(t, first.World, state.Loaded{}, g.plugIn)
		p := b.pod("p1", world.Pinned)
		b.pod("p2", "") // it has a process
		own := config("p3")
		own.Annotations = map[string]string{"io.berth.shim.own": "true"}
		if _, err := b.RunPodSandbox(t.Context(), own, world.Pinned); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(g.joined, []string{p}) || !slices.Equal(g.started, []string{p}) {
			t.Errorf("joined: %v, started: %v", g.joined, g.started)
		}
		loaded := b.kill()
		next := &grouper{}
		b = start(t, b.World, loaded, next.plugIn)
		if !slices.Equal(next.rejoined, []string{p}) || len(next.joined) > 0 {
			t.Errorf("rejoined: %v, joined: %v", next.rejoined, next.joined)
		}
		if err := b.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.KillShim(p)
		b.run(p, "c1")
		if !slices.Equal(next.started, []string{p}) {
			t.Errorf("started again: %v", next.started)
		}
	})
}

// A sandbox that cannot be recorded leaves the group that was chosen for it.
func TestASandboxThatIsNotRecordedLeavesItsGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, first *bubble) {
		first.stop()
		g := &grouper{}
		b := start(t, first.World, state.Loaded{}, g.plugIn)
		lift := b.Refuse("commit", "", errFull)
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), world.Pinned); err == nil {
			t.Fatal("a sandbox was made without a record")
		}
		lift()
		if !slices.Equal(g.joined, g.left) || len(g.left) != 1 {
			t.Errorf("joined: %v, left: %v", g.joined, g.left)
		}
	})
}

// PROPERTIES 71: a pod was not removed as long as the shim that it shared with others did not delete
// its task. The task is released once the shim goes on.
func TestAPodIsRemovedAlthoughItsSharedShimHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, first *bubble) {
		first.stop()
		g := &grouper{hangs: true}
		b := start(t, first.World, state.Loaded{}, g.plugIn)
		p := b.pod("p1", world.Pinned)
		c := b.run(p, "c1")
		goOn := b.Hold("delete-task", c)
		began := time.Now()
		if err := b.RemovePodSandbox(t.Context(), p); err != nil || time.Since(began) > 20*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		goOn()
		time.Sleep(10 * time.Minute)
		b.expectLeft(nil)
	})
}

// PROPERTIES 21: a shim that answers is slow, and does not hang: its pod is not removed without it.
func TestAPodWaitsForItsSharedShimThatIsSlow(t *testing.T) {
	inBubble(t, func(t *testing.T, first *bubble) {
		first.stop()
		g := &grouper{}
		b := start(t, first.World, state.Loaded{}, g.plugIn)
		p := b.pod("p1", world.Pinned)
		c := b.run(p, "c1")
		b.Stall("delete-task", c, 100, 30*time.Second)
		began := time.Now()
		if err := b.RemovePodSandbox(t.Context(), p); err != nil || time.Since(began) < 30*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		b.expectLeft(nil)
	})
}
