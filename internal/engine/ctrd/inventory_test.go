// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// containerdsOwnBound is how long containerd itself waits for a shim that is asked about a task.
const containerdsOwnBound = 2 * time.Second

// PROPERTIES 17: one shim stopped with SIGSTOP, with seven tasks, delayed ready by 28 s: each of
// its tasks was asked in turn, and then listed once more. The time is virtual.
func TestHungShimsDoNotDelayTheInventory(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{stubborn: stubborn}
			for pod := range 60 {
				id := fmt.Sprintf("pod%d", pod)
				hung := pod < 50
				f.add(id, "", hung)
				for c := range 7 {
					f.add(fmt.Sprintf("%s-c%d", id, c), id, hung)
				}
			}
			a := f.adapter(t)
			began := time.Now()
			inv, err := a.Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > time.Second/2 {
				t.Errorf("50 shims that hang delay the inventory by %s", took)
			}
			if len(inv.Containers) != 480 || len(inv.Tasks) != 80 || len(inv.Unreachable) != 400 {
				t.Errorf("%d containers, %d tasks, %d unreachable", len(inv.Containers), len(inv.Tasks), len(inv.Unreachable))
			}
			a.stop()
			close(f.end)
		})
	}
}

// PROPERTIES 21: the shims of a full node answer, each in good time. Those that were asked last
// were taken for hanging, and looked at again and again. The time is virtual.
func TestEveryShimOfAFullNodeIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{delay: answerTimeout / 2}
		for pod := range 500 {
			id := fmt.Sprintf("pod%d", pod)
			f.add(id, "", false)
			for c := range 2 {
				f.add(fmt.Sprintf("%s-c%d", id, c), id, false)
			}
		}
		a := f.adapter(t)
		inv, err := a.Inventory(t.Context())
		if err != nil || len(inv.Tasks) != 1500 || len(inv.Unreachable) != 0 {
			t.Errorf("%d tasks, %d unreachable, %v", len(inv.Tasks), len(inv.Unreachable), err)
		}
		a.stop()
	})
}

// A task without a container is found although shims hang: if not by the inventory that began to
// look, then by the next.
func TestATaskWithoutAContainerIsFoundBesideHungShims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.add("pod", "", true)
		f.add("orphan", "", false)
		delete(f.containers, "orphan")
		a := f.adapter(t)
		for range 2 {
			if _, err := a.Inventory(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		inv, err := a.Inventory(t.Context())
		if err != nil || len(inv.Orphans) != 1 || !inv.Orphans["orphan"] {
			t.Errorf("%v %v", inv.Orphans, err)
		}
		time.Sleep(time.Minute) // the search that the last inventory began has ended
		a.orphans.take()
		f.hung["pod"] = false
		if inv, err = a.Inventory(t.Context()); err != nil || !inv.Orphans["orphan"] {
			t.Errorf("with no shim that hangs: %v %v", inv.Orphans, err)
		}
		a.stop()
	})
}

// A question about a task ends in its own time, also where containerd does not give up (a write to
// a shim whose socket is full), and such questions do not pile up.
func TestAQuestionAboutATaskIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{stubborn: true}
		f.add("pod", "", true)
		f.add("other", "", false)
		a := f.adapter(t)
		for range 3 * callsPerTask {
			began := time.Now()
			if _, err := a.TaskState(t.Context(), "pod"); err == nil {
				t.Fatal("a hung shim has answered")
			}
			if took := time.Since(began); took > taskTimeout {
				t.Errorf("the question took %s", took)
			}
		}
		if n := f.waiting.Load(); n > callsPerTask {
			t.Errorf("%d questions wait for an answer", n)
		}
		if st, err := a.TaskState(t.Context(), "other"); err != nil || !st.Running {
			t.Errorf("another shim: %v %v", st, err)
		}
		close(f.end)
		synctest.Wait()
		f.hung["pod"] = false
		if st, err := a.TaskState(t.Context(), "pod"); err != nil || !st.Running {
			t.Errorf("once the shim goes on: %v %v", st, err)
		}
	})
}
