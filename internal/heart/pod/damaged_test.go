// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/state"
)

// damage returns what a restart loads if the records of containers cannot be read.
func damage(loaded state.Loaded, pod string, containers ...string) state.Loaded {
	for _, c := range containers {
		loaded.Damaged = append(loaded.Damaged, state.Damaged{
			Kind:      state.KindContainer,
			ID:        c,
			Err:       errors.New("unreadable"),
			Container: state.Container{ID: c, PodID: pod, Config: &runtimeapi.ContainerConfig{}},
		})
	}
	loaded.Containers = nil
	return loaded
}

// A stop ends what runs, whatever can be read of its record, and nothing runs on without its pod.
func TestAStopEndsWhatADamagedRecordIsAbout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		nothing := b.Left()
		p := b.pod("p1", "")
		c1, c2, c3 := b.run(p, "c1"), b.run(p, "c2"), b.run(p, "c3")
		again := restart(t, b.World, damage(b.kill(), p, c1, c2, c3))
		if err := again.StopContainer(t.Context(), c1, 0); err != nil || !b.Process(c1).Ended || b.Process(c2).Ended {
			t.Errorf("stop: %v; ended: %v, the other: %v", err, b.Process(c1).Ended, b.Process(c2).Ended)
		}
		if err := again.StopPodSandbox(t.Context(), p); err != nil || !b.Process(c2).Ended || !b.Process(c3).Ended {
			t.Errorf("stop of the pod: %v; ended: %v, %v", err, b.Process(c2).Ended, b.Process(c3).Ended)
		}
		if err := again.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
		again.expectLeft(nothing)
	})
}

// A damaged record is left alone until somebody removes it; then everything of its ID goes.
func TestADamagedRecordCanBeRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		left := b.Left()
		c := b.run(p, "c1")
		again := restart(t, b.World, damage(b.kill(), p, c))
		time.Sleep(time.Hour)
		if b.Held(c) == "" {
			t.Fatal("what belongs to a damaged record was reaped unasked")
		}
		again.expect(c, runtimeapi.ContainerState_CONTAINER_UNKNOWN, 0, "RecordDamaged")
		if l := again.ListContainers(&runtimeapi.ContainerFilter{PodSandboxId: p}); len(l) != 1 || l[0].GetId() != c {
			t.Errorf("listed: %v", l)
		}
		if err := again.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		again.expectLeft(left)
	})
}
