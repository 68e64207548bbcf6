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

	"berth/test/world"
)

// A stop that arrives while an exit waits to be settled has it settled at once.
func TestAStopHasAWaitingExitSettledNow(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		time.Sleep(time.Minute + 300*time.Millisecond)
		lift()
		began := time.Now()
		if err := b.StopContainer(t.Context(), c, time.Minute); err != nil || time.Since(began) != 0 {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
	})
}

// A creation that hangs does not hold up the stop of its pod, nor the pod's network.
func TestAStopOfAPodInterruptsCreationsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		b.Hold("prepare-snapshot", "")
		created := make(chan error, 1)
		go func() {
			_, err := b.CreateContainer(t.Context(), p, ctr("c1"))
			created <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := b.StopPodSandbox(t.Context(), p); err != nil || time.Since(began) > time.Second {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
		if err := <-created; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("the creation ended with %v", err)
		}
		synctest.Wait()
		if slices.Contains(b.Left(), "CNI result "+p) {
			t.Error("the network is held")
		}
		if l := b.ListContainers(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
	})
}

// PROPERTIES 3: the shim of a pod hangs, and so does its release. The stop of the pod returns once
// the network is given back. It took five seconds.
func TestAStopOfAPodDoesNotWaitForItsShim(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		lift := b.Hold("end-shim", p)
		began := time.Now()
		if err := b.StopPodSandbox(t.Context(), p); err != nil || time.Since(began) > time.Second {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
		if slices.Contains(b.Left(), "CNI result "+p) {
			t.Error("the network is held")
		}
		lift()
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(nil)
	})
}

func TestStopAndRemoveAreIdempotentAndDefined(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ctx := t.Context()
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		never := b.create(p, ctr("never"))
		if err := b.StopContainer(ctx, never, 0); err != nil {
			t.Error(err)
		}
		b.expect(never, created, 0, "")
		var wg sync.WaitGroup
		for range 3 { // at once
			wg.Go(func() {
				if err := b.StopContainer(ctx, c, time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		b.expect(c, exited, 137, "Error")
		if err := b.StartContainer(ctx, c); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("start of the dead: %v", err)
		}
		for range 2 {
			for _, err := range []error{b.RemoveContainer(ctx, never), b.RemovePodSandbox(ctx, p), b.StopPodSandbox(ctx, p), b.StopContainer(ctx, c, 0)} {
				if err != nil {
					t.Error(err)
				}
			}
		}
		b.expectLeft(nil)
	})
}

func TestAStopDuringAStartEndsWhatWasStarted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		release := b.HoldAnswer("start-task", c)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.StartContainer(t.Context(), c) })
		synctest.Wait()
		wg.Go(func() {
			if err := b.StopContainer(t.Context(), c, 0); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		release()
		wg.Wait()
		b.expect(c, exited, 137, "Error")
	})
}

// A start took effect and is not on record, berth was killed, and the shim does not answer: a stop
// ends the process, and what is found to run in a stopped pod later is ended.
func TestAStopEndsWhatAStartThatWasCutOffMade(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		t.Run(fmt.Sprint(recorded), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", "")
				c := b.create(p, ctr("c1"))
				again, answer := startHung(t, b, c, b.HoldAnswer, recorded)
				if err := again.StopPodSandbox(t.Context(), p); err != nil || recorded && !b.Process(c).Ended {
					t.Errorf("stop: %v, ended: %v", err, b.Process(c).Ended)
				}
				answer()
				time.Sleep(time.Minute)
				if !b.Process(c).Started || !b.Process(c).Ended {
					t.Errorf("it was started: %v, and has ended: %v", b.Process(c).Started, b.Process(c).Ended)
				}
				if st, err := again.ContainerStatus(t.Context(), c, false); err != nil || st.GetStatus().GetState() != exited {
					t.Errorf("%v, %v", st, err)
				}
			})
		})
	}
}

// PROPERTIES 72: a stop is on record, and SIGKILL comes at its deadline if its client is gone, or if
// berth was killed; a second request joins it. Nor does a disk keep a stop from its effect.
func TestAStopGoesOnWithoutItsCall(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, b *bubble, c string, hangUp func()) *bubble{
		"its client is gone": func(_ *testing.T, b *bubble, _ string, hangUp func()) *bubble { hangUp(); return b },
		"berth is killed":    func(t *testing.T, b *bubble, _ string, _ func()) *bubble { return restart(t, b.World, b.kill()) },
		"it is repeated": func(t *testing.T, b *bubble, c string, hangUp func()) *bubble {
			hangUp()
			again := restart(t, b.World, b.kill())
			go func() { _ = again.StopContainer(context.WithoutCancel(t.Context()), c, time.Hour) }()
			return again
		},
		"the disk is full":         func(_ *testing.T, b *bubble, _ string, _ func()) *bubble { return b },
		"the disk does not answer": func(_ *testing.T, b *bubble, _ string, _ func()) *bubble { return b },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.run(b.pod("p1", ""), "c1")
				lift := func() {}
				switch name {
				case "the disk is full":
					lift = b.Refuse("commit", c, errFull)
				case "the disk does not answer":
					lift = b.Hold("commit", c)
				}
				began := time.Now()
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				stop := b.StopContainer
				go func() { _ = stop(ctx, c, 30*time.Second) }()
				time.Sleep(5 * time.Second)
				b = meanwhile(t, b, c, hangUp)
				time.Sleep(24 * time.Second)
				if p := b.Process(c); !p.Asked || p.Killed {
					t.Errorf("after 29 seconds it was asked to end: %v, and killed: %v", p.Asked, p.Killed)
				}
				time.Sleep(3 * time.Second)
				if p := b.Process(c); !p.Ended {
					t.Errorf("it lives %v after it was to be stopped", time.Since(began))
				}
				if signals := b.Calls("signal", c); signals != 2 {
					t.Errorf("it got %d signals", signals)
				}
				lift()
				time.Sleep(time.Minute)
				b.expect(c, exited, 137, "Error")
			})
		})
	}
}
