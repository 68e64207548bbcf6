// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/state"
	"berth/test/world"
)

// recorder notes the events of units, and does as another observer besides.
type recorder struct {
	pod.Observer
	mu     sync.Mutex
	events []string
}

func (r *recorder) Event(id, what string, err error, fields ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range fields {
		if s, ok := f.(string); ok {
			what += " " + s
		}
	}
	r.events = append(r.events, what)
	r.Observer.Event(id, what, err, fields...)
}

func (r *recorder) has(words ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		all := true
		for _, w := range words {
			all = all && strings.Contains(e, w)
		}
		if all {
			return true
		}
	}
	return false
}

// A host_path on a file system that does not answer is named: to a caller whose deadline passes, in
// the timeline, and in the error of the creation.
func TestAHostPathThatDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{Observer: &failures{}}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = events })
		p := b.pod("p1", "")
		cfg := ctr("c1")
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/mnt/dead"}}
		answer := b.Hold("host-path", "/mnt/dead")
		for range 2 { // the call of a kubelet, and its retry
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			_, err := b.CreateContainer(ctx, p, cfg)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "host_path /mnt/dead") {
				t.Errorf("at the deadline of the call: %v", err)
			}
		}
		if !events.has("host_path", "/mnt/dead") {
			t.Errorf("the timeline has %q", events.events)
		}
		_, err := b.CreateContainer(t.Context(), p, cfg)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "mount /data") {
			t.Errorf("at the end of the creation: %v", err)
		}
		answer()
		if _, err := b.CreateContainer(t.Context(), p, cfg); err != nil {
			t.Error(err)
		}
	})
}
