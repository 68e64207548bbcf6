// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// errSick is what a shim answers that is not well.
var errSick = fmt.Errorf("the shim is not well: %w", errdefs.ErrUnavailable)

// PROPERTIES 35: what somebody waits for is tried at once, and at least every second for as long as
// he waits. In each case an operation of the shim fails for half an hour, so that what berth
// retries backs off for minutes; then it is well again. The call is made while it fails, or once it
// is well.
func TestEveryWaitPokes(t *testing.T) {
	type call func(ctx context.Context, b *bubble, pod, id string) error
	start := func(ctx context.Context, b *bubble, _, id string) error { return b.StartContainer(ctx, id) }
	stop := func(ctx context.Context, b *bubble, _, id string) error {
		return b.StopContainer(ctx, id, time.Minute)
	}
	stopPod := func(ctx context.Context, b *bubble, pod, _ string) error { return b.StopPodSandbox(ctx, pod) }
	remove := func(ctx context.Context, b *bubble, _, id string) error { return b.RemoveContainer(ctx, id) }
	removePod := func(ctx context.Context, b *bubble, pod, _ string) error { return b.RemovePodSandbox(ctx, pod) }
	update := func(ctx context.Context, b *bubble, _, id string) error {
		return b.UpdateContainerResources(ctx, id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20})
	}
	for _, tc := range []struct {
		name  string
		cut   string // a start is cut off in this step; "": the container runs
		sick  string // the operation that fails for half an hour
		fresh bool   // it fails already when berth compares for the first time
		call  call
	}{
		{"start after an undone start", "start-task", "delete-task", false, start},
		{"stop after an undone start", "start-task", "delete-task", false, stop},
		{"stop of the pod after an undone start", "start-task", "delete-task", false, stopPod},
		{"removal after an undone start", "start-task", "delete-task", false, remove},
		{"update after an undone start", "start-task", "delete-task", false, update},
		{"start after a comparison", "start-task", "get-task", true, start},
		{"stop after a comparison", "start-task", "get-task", true, stop},
		{"update after a comparison", "start-task", "get-task", true, update},
		{"removal", "", "delete-task", false, remove},
		{"removal of the pod", "", "delete-task", false, removePod},
		{"update", "", "update-task", false, update},
	} {
		for _, early := range []bool{false, true} {
			name := tc.name
			if early {
				name += ", asked for early"
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bubble) {
					p := b.pod("p1", "")
					var id string
					if tc.cut == "" {
						id = b.run(p, "c1")
					} else {
						id = b.create(p, ctr("c1"))
						b = cutOffWhere(t, b, tc.cut, id, tc.sick, tc.fresh)
					}
					well := b.Refuse(tc.sick, id, errSick)
					if tc.cut == "" { // something to retry
						begun, cancel := context.WithTimeout(t.Context(), time.Second)
						_ = tc.call(begun, b, p, id)
						cancel()
					}
					time.Sleep(30*time.Minute + 3*time.Second)
					done := make(chan error, 1)
					ask := func() { done <- tc.call(t.Context(), b, p, id) }
					if early {
						go ask()
						time.Sleep(time.Minute + 300*time.Millisecond)
					}
					b.Heal()
					well()
					healed := time.Now()
					if !early {
						go ask()
					}
					if err := <-done; err != nil || time.Since(healed) > time.Second {
						t.Errorf("it took %v after the shim was well: %v", time.Since(healed), err)
					}
				})
			})
		}
	}
}

// cutOffWhere kills b while a start of id is in a step, and returns the berth that follows. fresh
// says that an operation fails when that one compares for the first time.
func cutOffWhere(t *testing.T, b *bubble, step, id, sick string, fresh bool) *bubble {
	t.Helper()
	release := b.Hold(step, id)
	go func() { _ = b.StartContainer(context.WithoutCancel(t.Context()), id) }()
	synctest.Wait()
	loaded := b.kill()
	release()
	if fresh {
		b.Refuse(sick, id, errSick)
	} else {
		b.Fail(sick, id, 1)
	}
	return restart(t, b.World, loaded)
}
