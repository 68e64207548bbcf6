// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// PROPERTIES 18: the state disk is full for ten minutes, then there is room. The exit is visible
// within two seconds, and does not wait in the back-off of earlier attempts.
func TestSettlingDoesNotWaitInALongBackOff(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		time.Sleep(10 * time.Minute)
		b.expect(c, running, 0, "")
		lift()
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 42, "Error")
	})
}

func TestAnExitIsDurableBeforeAnyCleanUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		before := len(b.Did())
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		time.Sleep(time.Second)
		did := b.Did()[before:]
		if i, j := slices.Index(did, "commit "+c), slices.Index(did, "delete-task "+c); i < 0 || j < i {
			t.Errorf("not in order: %v", did)
		}
	})
}

func TestEveryWitnessAtOnceSettlesOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sub := b.feed.Subscribe()
		defer sub.Close()
		c := b.run(b.pod("p1", ""), "c1")
		var wg sync.WaitGroup
		for _, o := range []exit.Origin{exit.Task, exit.Stream, exit.Audit, exit.Task, exit.Stream} {
			wg.Go(func() {
				b.Exited(exit.Fact{ID: c, Code: 42, Measured: o != exit.Audit, At: clock.Stamped(time.Now()), Origin: o})
			})
		}
		wg.Go(func() { b.exit(c, 42) })
		wg.Wait()
		time.Sleep(time.Minute)
		b.expect(c, exited, 42, "Error")
		stops := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for {
			ev, err := sub.Next(ctx)
			if err != nil {
				break
			}
			if ev.GetContainerId() == c && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				stops++
			}
		}
		if stops != 1 {
			t.Errorf("STOPPED was published %d times", stops)
		}
	})
}

func TestACodeThatNobodyMeasuredIsUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Exact, b.ShimDelay = false, time.Hour
		c := b.run(b.pod("p1", ""), "c1")
		b.Refuse("get-task", c, errdefs.ErrNotFound)
		b.exit(c, 42)
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 255, "Unknown")
		// Somebody knows after all: it is corrected, once.
		b.Exited(exit.Fact{ID: c, Code: 42, Measured: true, At: clock.Stamped(time.Now()), Origin: exit.Task})
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		b.Exited(exit.Fact{ID: c, Code: 1, Measured: true, At: clock.Stamped(time.Now()), Origin: exit.Stream})
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// PROPERTIES 11 and 73: no event is published before the disk has it. A full disk is tried again, and
// nothing is lost; meanwhile the message of the status tells of the end.
func TestAFullDiskDelaysTheTruthAndLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		at := time.Now()
		time.Sleep(10 * time.Second)
		b.expect(c, running, 0, "") // what is not durable is not visible
		b.expectMessage(c, fmt.Sprintf("its process ended with code 42 at %[2]s, which is not on record yet: record container %[1]s: commit %[1]s: %[3]v",
			c, at.Format(time.RFC3339), errFull))
		if n := b.Calls("delete-task", c); n != 0 {
			t.Errorf("cleaned up %d times before it was durable", n)
		}
		lift()
		time.Sleep(time.Minute)
		b.expect(c, exited, 42, "Error")
		b.expectMessage(c, "")
	})
}

func TestALogThatIsHeldOpenDelaysTheTruthByItsBoundOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.HoldOutput()
		c := b.run(b.pod("p1", ""), "c1")
		began := time.Now()
		b.exit(c, 0)
		<-b.Unit(c).Settled()
		if d := time.Since(began); d != 250*time.Millisecond {
			t.Errorf("settled after %v", d)
		}
	})
}
