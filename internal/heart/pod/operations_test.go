// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// panicking is a containerd of which one method panics.
type panicking struct {
	pod.Runtime
	in atomic.Value // the name of a method
}

// enter panics in the method that is named.
func (r *panicking) enter(method string) {
	if r.in.Load() == method {
		panic(method)
	}
}

func (r *panicking) PrepareSnapshot(ctx context.Context, l pod.Layer) error {
	r.enter("PrepareSnapshot")
	return r.Runtime.PrepareSnapshot(ctx, l)
}

func (r *panicking) StartTask(ctx context.Context, id string) error {
	r.enter("StartTask")
	return r.Runtime.StartTask(ctx, id)
}

func (r *panicking) DeleteSandbox(ctx context.Context, id string) error {
	r.enter("DeleteSandbox")
	return r.Runtime.DeleteSandbox(ctx, id)
}

// What panics in an operation ends that operation with an error, is undone, and ends nothing else.
func TestAPanicEndsItsCallAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &panicking{}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { r.Runtime, p.Runtime = p.Runtime, r })
		p := b.pod("p1", "")
		r.in.Store("PrepareSnapshot")
		if _, err := b.CreateContainer(t.Context(), p, ctr("c1")); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "PrepareSnapshot") {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		c, c2 := b.run(p, "c1"), b.create(p, ctr("c2"))
		r.in.Store("StartTask")
		if err := b.StartContainer(t.Context(), c2); !errdefs.IsInternal(err) {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		time.Sleep(time.Minute)
		b.expect(c2, exited, 128, "StartError")
		b.expect(c, running, 0, "")
		r.in.Store("DeleteSandbox")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.RemovePodSandbox(ctx, p); err == nil || !strings.Contains(err.Error(), "DeleteSandbox") {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
	})
}

func TestRequestsAreRefusedWhileBerthStops(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		b.stop()
		if _, err := b.RunPodSandbox(t.Context(), config("p2"), ""); !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
		if err := b.StartContainer(t.Context(), c); !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
	})
}
