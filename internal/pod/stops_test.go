// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"testing"
	"time"
)

// Who freezes a container is notified of a stop as soon as it begins; one that its caller has given
// up does not count any more.
func TestATargetIsStoppingWhileAStopIsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		stopping := func() <-chan struct{} {
			t.Helper()
			got, err := b.Target(c)
			if err != nil {
				t.Fatal(err)
			}
			return got.Stopping
		}
		before := stopping()
		select {
		case <-before:
			t.Error("it is to be stopped before anybody has asked")
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.StopContainer(ctx, c, time.Hour) }()
		<-before
		<-stopping()
		cancel()
		if err := <-done; err == nil {
			t.Error("the stop succeeded although the container ignores it")
		}
		select {
		case <-stopping():
			t.Error("it is to be stopped although nobody asks for it")
		default:
		}
		if err := b.StopContainer(t.Context(), c, 0); err != nil {
			t.Error(err)
		}
	})
}
