// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

func TestAShimThatReportsTheEndOfALivingProcessIsDoubted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		// The shim died; containerd's clean-up claims 137.
		b.Exited(exit.Fact{ID: c, Code: 137, Measured: true, At: clock.Stamped(time.Now()), Origin: exit.Stream})
		time.Sleep(time.Minute)
		b.expect(c, running, 0, "")
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// An older kernel knows that the process ended; the code comes from the shim.
func TestTheShimSuppliesTheCodeThatTheKernelLacks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Exact, b.ShimDelay = false, 10*time.Millisecond
		c := b.run(b.pod("p1", ""), "c1")
		b.exit(c, 42)
		time.Sleep(100 * time.Millisecond)
		b.expect(c, exited, 42, "Error")
	})
}

func TestAVMRuntimeIsWitnessedByItsTask(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", "vm"), "c1")
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// PROPERTIES 23 and 33: the output of a container could not be opened when berth came back, nor by the
// first comparison: nobody read it for five minutes, and the container waited in its writes.
func TestOutputThatCouldNotBeOpenedIsOpenedSoon(t *testing.T) {
	for _, why := range world.InVain {
		inBubble(t, func(t *testing.T, b *bubble) {
			c := b.run(b.pod("p1", ""), "c1")
			synctest.Wait()
			b.AskInVain("stdio-open", c, 4, why)
			before := b.Calls("stdio-run", c)
			restart(t, b.World, b.kill())
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := b.Calls("stdio-run", c) - before; n != 1 {
				t.Errorf("%v: after ten seconds its output is read by %d", why, n)
			}
		})
	}
}

// PROPERTIES 2: a wait for a task in a virtual machine failed once, and so did each question of the
// audit meanwhile: the end was seen once they could be asked again.
func TestAWaitForATaskThatFailedIsBegunAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.AskInVain("wait-task", "", 2, unix.EIO)
		c := b.run(b.pod("p1", "vm"), "c1")
		time.Sleep(2 * time.Second)
		if n := b.Waiting(c); n != 1 {
			t.Errorf("%d wait for the task", n)
		}
		lift := b.Refuse("get-task", "", unix.EMFILE) // the audit's question
		defer lift()
		b.exit(c, 42)
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 42, "Error")
	})
}

// Each healthy pod and container was noted at each comparison, which was most of the log and of the
// history of a node. A comparison is noted if it changes something, and once if it finds something
// new.
func TestAComparisonThatChangesNothingIsNotNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(notes, 1000)
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = told })
		defer b.stop()
		p := b.pod("p1", "")
		b.run(p, "c1")
		for _, tt := range []struct {
			what string
			do   func()
			news bool
		}{
			{"an hour passes", func() { time.Sleep(time.Hour) }, false},
			{"the shim of both is killed", func() { b.KillShim(p) }, true},
			{"it stays so", func() {}, false},
		} {
			tt.do()
			for range 3 {
				if err := b.Relist(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
			}
			compared := 0
			for len(told) > 0 {
				if _, ok := (<-told).(event.Compared); ok {
					compared++
				}
			}
			if (compared > 0) != tt.news || compared > 6 {
				t.Errorf("%s: %d comparisons are noted", tt.what, compared)
			}
		}
	})
}

// Every relist finds the same units running: none may get one more listener each time.
func TestARelistAddsNoListener(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "vm")
		c := b.run(p, "c1")
		time.Sleep(time.Hour) // relists at leisure
		for range 10 {
			if err := b.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n, m := b.Waiting(p), b.Waiting(c); n != 1 || m != 1 {
			t.Errorf("listeners: %d of the sandbox, %d of the container", n, m)
		}
	})
}
