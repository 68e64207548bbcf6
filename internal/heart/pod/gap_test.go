// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/engine/ctrd"
	"berth/test/world"
)

// follow keeps b subscribed to containerd's events.
func (b *bubble) follow() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	adapter := b.ports.Runtime.(interface {
		Follow(ctx context.Context, l ctrd.Listener) error
	})
	var following sync.WaitGroup
	following.Go(func() {
		_ = adapter.Follow(ctx, ctrd.Listener{
			Exited:    b.Exited,
			OOM:       b.OOMKilled,
			Image:     func(string) {},
			Connected: func(context.Context) error { return nil },
			Lost:      func(error) {},
		})
	})
	b.t.Cleanup(func() { cancel(); following.Wait() })
	synctest.Wait()
}

// PROPERTIES 3 and 6: tasks were deleted before their shim had published that they ended, which held up
// the shim in learning of the others: the removal of sixty took half a minute.
func TestATaskIsDeletedOnceItsEndIsPublished(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Gap = 20 * time.Millisecond
		b.follow()
		p := b.pod("p1", "")
		ids := make([]string, 60)
		for i := range ids {
			ids[i] = b.run(p, fmt.Sprint("c", i))
		}
		for _, id := range ids {
			b.exit(id, 1)
		}
		began := time.Now()
		var removing sync.WaitGroup
		for _, id := range ids {
			removing.Go(func() {
				if err := b.RemoveContainer(t.Context(), id); err != nil {
					t.Error(err)
				}
			})
		}
		removing.Wait()
		if took := time.Since(began); took != b.Gap || b.Early() != 0 {
			t.Errorf("it took %s, and %d tasks were deleted before their end was published", took, b.Early())
		}
	})
}

// A shim that never publishes an end holds its deletion up for half a second after the end, once,
// and not at all where nobody would hear of it, or has heard already.
func TestAnEndThatIsNeverPublishedHoldsNothingUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		removed := func(name string, later, most time.Duration) {
			t.Helper()
			c := b.run(p, name)
			b.exit(c, 1)
			time.Sleep(later)
			began := time.Now()
			if err := b.RemoveContainer(t.Context(), c); err != nil || time.Since(began).Round(time.Microsecond) != most {
				t.Errorf("%s took %s and not %s: %v", name, time.Since(began), most, err)
			}
		}
		removed("nobody listens", 0, 0)
		b.follow()
		removed("published at once", 0, 0)
		b.Swallow(2, 0)
		removed("never published", 0, 500*time.Millisecond)
		removed("never published, and ended long ago", 10*time.Second, 0)
	})
}

// A pod without a process has no task whose end a shim could publish: its removal waited for that.
func TestThePublicationOfNoTaskIsNotWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.follow()
		p := b.pod("p1", world.Pinned)
		began := time.Now()
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := b.RemovePodSandbox(t.Context(), p); err != nil || time.Since(began) != 0 {
			t.Errorf("it took %s: %v", time.Since(began), err)
		}
	})
}
