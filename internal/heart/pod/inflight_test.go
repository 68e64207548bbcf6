// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// PROPERTIES 16.
func TestARetriedCallJoinsTheOneInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.RunPodSandbox(ctx, config("p1"), ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		var ids [2]string
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				var err error
				if ids[i], err = b.RunPodSandbox(t.Context(), config("p1"), ""); err != nil {
					t.Error(err)
				}
			})
		}
		other := config("p1")
		other.Hostname = "other"
		synctest.Wait()
		if _, err := b.RunPodSandbox(t.Context(), other, ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("another configuration: %v", err)
		}
		release()
		wg.Wait()
		if n := len(b.Records().Sandboxes); ids[0] != ids[1] || n != 1 {
			t.Errorf("%v, %d sandboxes", ids, n)
		}
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("a caller that has its answer: %v", err)
		}
	})
}

func TestAResultThatNobodyReceivedGoesToTheNextRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = b.RunPodSandbox(ctx, config("p1"), "")
		release()
		synctest.Wait()
		id := b.pod("p1", "")
		if all := b.Records().Sandboxes; len(all) != 1 || id != all[0].ID {
			t.Error("a second sandbox was made")
		}
	})
}
