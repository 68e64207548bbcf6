// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
)

// PROPERTIES 70: a berth that knew no instants has stamped what the clock showed, and the clock was
// set back then. Restored, nothing is later than now, everything was created, started and ended in
// this order, and the creations rise with the attempts.
func TestWhatWasStampedBeforeTheClockWasSetBackIsPutInOrder(t *testing.T) {
	c := clock.New(nil)
	now := c.Now()
	sandbox := func(id string, attempt uint32, at time.Duration) state.SandboxRecord {
		config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "uid", Attempt: attempt}}
		return state.SandboxRecord{Sandbox: state.Sandbox{ID: id, CreatedAt: now.Add(at), Config: config}}
	}
	container := func(attempt uint32, created, started, ended time.Duration) state.ContainerRecord {
		config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: attempt}}
		r := state.ContainerRecord{Container: state.Container{PodID: "s0", CreatedAt: now.Add(created), Config: config}}
		r.Status = state.Status{StartedAt: now.Add(started), Exit: exit.Fact{At: now.Add(ended)}}
		return r
	}
	all := state.Loaded{
		Sandboxes: []state.SandboxRecord{sandbox("s1", 1, -time.Minute), sandbox("s0", 0, time.Hour)},
		Containers: []state.ContainerRecord{
			container(0, -time.Minute, time.Hour, -time.Second),
			container(1, -time.Hour, -time.Hour, -2*time.Minute),
			container(2, -time.Minute, -time.Minute, time.Hour),
		},
	}
	inOrder(&all, c)
	if a, b := all.Sandboxes[1].CreatedAt, all.Sandboxes[0].CreatedAt; !a.Before(b) || b != now.Add(-time.Minute) {
		t.Errorf("the sandboxes were created at %s and %s", a, b)
	}
	for n, r := range all.Containers {
		if r.Status.StartedAt.Before(r.CreatedAt) || r.Status.Exit.At.Before(r.Status.StartedAt) || r.Status.Exit.At.After(c.Now()) {
			t.Errorf("attempt %d was created at %s, started at %s, and ended at %s", n, r.CreatedAt, r.Status.StartedAt, r.Status.Exit.At)
		}
		if n > 0 && !all.Containers[n-1].CreatedAt.Before(r.CreatedAt) {
			t.Errorf("attempt %d was created at %s, and the one before it at %s", n, r.CreatedAt, all.Containers[n-1].CreatedAt)
		}
	}
}
