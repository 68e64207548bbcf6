// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"testing"
	"testing/synctest"
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

// A pod is removed whose sandbox has ended while a container of it is being started: the release of
// the container was scheduled before its start was given up, and nobody settled it any more. The
// removal waited for that.
func TestARemovalDoesNotWaitForWhatIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		id := b.create(p, ctr("c1"))
		release := b.Hold("start-task", id)
		defer release()
		go func() { _ = b.StartContainer(context.WithoutCancel(t.Context()), id) }()
		synctest.Wait()
		for _, u := range []string{p, id} { // as an earlier removal does, whose caller has gone
			if err := b.Unit(u).MarkRemoving(); err != nil {
				t.Fatal(err)
			}
		}
		b.exit(p, 0)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := b.RemovePodSandbox(ctx, p); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		b.expectLeft(nil)
	})
}
