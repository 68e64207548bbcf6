// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// silent is a containerd that answers no question about a task once hang is set.
type silent struct {
	pod.Runtime
	mu    sync.Mutex
	asked map[string]int
	hang  chan struct{}
}

func (r *silent) TaskState(ctx context.Context, id string) (pod.TaskState, error) {
	r.mu.Lock()
	hang := r.hang
	r.asked[id]++
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return r.Runtime.TaskState(ctx, id)
}

// PROPERTIES 2 and 17: tasks that nobody but their shims can speak for do not answer. The audit
// finds the end of a process that the kernel sees all the same.
func TestTasksThatDoNotAnswerHideNoExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &silent{asked: map[string]int{}}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { r.Runtime, p.Runtime = p.Runtime, r })
		vm := b.pod("vm", "vm")
		for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			b.run(vm, name)
		}
		c := b.run(b.pod("p1", ""), "c1")
		r.mu.Lock()
		r.hang = make(chan struct{})
		clear(r.asked)
		r.mu.Unlock()
		b.exitUnseen(c, 42)
		time.Sleep(5 * time.Second)
		b.expect(c, exited, 42, "Error")
		close(r.hang)
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, n := range r.asked {
			if n != 1 {
				t.Errorf("%s: %d questions at once", id, n)
			}
		}
		if len(r.asked) < 27 {
			t.Errorf("only %d tasks were asked", len(r.asked))
		}
	})
}

// PROPERTIES 2: no witness reports it; the audit finds it within 5 s.
func TestAnExitThatNoWitnessReportedIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.exitUnseen(c, 42)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// firstRelistAtMost is longer than the pause before an incomplete comparison is repeated.
const firstRelistAtMost = time.Second

// A shim does not answer when berth comes back: whether the start that was cut off took effect is
// found out once it does, long before the next relist, and soon after where the shim was only slow.
// Where the process was on record, the start was given up at once.
func TestAShimThatDidNotAnswerAtBootIsAskedAgainSoon(t *testing.T) {
	for _, tc := range []struct {
		recorded     bool
		silent, most time.Duration
	}{
		{false, 300 * time.Millisecond, 2 * time.Second},
		{true, 300 * time.Millisecond, 2 * time.Second},
		{false, 5 * time.Second, 12 * time.Second},
		{true, 5 * time.Second, 12 * time.Second},
		{false, time.Minute, 76 * time.Second},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.create(b.pod("p1", ""), ctr("c1"))
				again, answer := startHung(t, b, c, b.Hold, tc.recorded)
				began := time.Now()
				started := make(chan error, 1)
				go func() { started <- again.StartContainer(t.Context(), c) }()
				time.Sleep(tc.silent)
				answer()
				if err := <-started; err != nil || time.Since(began) > tc.most {
					t.Errorf("started after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

// A comparison that takes long is not joined by another one, which would keep berth from stopping.
func TestComparisonsDoNotPileUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		again, _ := startHung(t, b, c, b.Hold, false)
		slow := again.RefuseOnce("list-containers", "", nil)
		defer slow()
		time.Sleep(2 * firstRelistAtMost)                 // the audit compares, and containerd does not answer
		if err := again.Relist(t.Context()); err != nil { // a new connection
			t.Fatal(err)
		}
		synctest.Wait()
		before := again.Calls("list-containers", "")
		slower := again.RefuseOnce("list-containers", "", nil)
		defer slower()
		time.Sleep(2 * firstRelistAtMost)
		if again.Calls("list-containers", "") != before {
			t.Error("another comparison was begun while one was under way")
		}
		again.stop()
	})
}
