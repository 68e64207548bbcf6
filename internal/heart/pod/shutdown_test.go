// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The machine is shut down: each container has its own grace period, all at the same time, and its
// own code. Nothing is made or started any more, and what does not end is killed before the
// deadline.
//
// PROPERTIES 68
func TestAShutdownEndsEachContainerInItsGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		ids := map[string]string{"ends": b.run(p, "ends")}
		for name, grace := range map[string]string{"short": "2", "long": "3600"} {
			c := ctr(name)
			c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": grace}
			ids[name] = b.create(p, c)
			if err := b.StartContainer(t.Context(), ids[name]); err != nil {
				t.Fatal(err)
			}
		}
		unstarted, err := b.CreateContainer(t.Context(), p, ctr("unstarted"))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- b.ShutDown(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		b.exit(ids["ends"], 7)
		if err := b.StartContainer(t.Context(), unstarted); !errdefs.IsUnavailable(err) {
			t.Errorf("a container is started meanwhile: %v", err)
		}
		if _, err := b.CreateContainer(t.Context(), p, ctr("late")); !errdefs.IsUnavailable(err) {
			t.Errorf("a container is made meanwhile: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for name, want := range map[string]struct {
			code  int32
			after time.Duration
		}{"ends": {7, time.Second}, "short": {137, 2 * time.Second}, "long": {137, 85 * time.Second}} {
			st, err := b.ContainerStatus(t.Context(), ids[name], false)
			if err != nil {
				t.Fatal(err)
			}
			s := st.GetStatus()
			if s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetExitCode() != want.code {
				t.Errorf("%s: %v, code %d", name, s.GetState(), s.GetExitCode())
			}
			if took := time.Unix(0, s.GetFinishedAt()).Sub(began); took < want.after || took > want.after+time.Second {
				t.Errorf("%s ended after %v", name, took)
			}
		}
	})
}
