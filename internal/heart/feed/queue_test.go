// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"testing"
)

func TestCoalescingKeepsTheNewestAtItsPlace(t *testing.T) {
	f := New(Config{Queue: 4, Backlog: 4})
	s := f.Subscribe()
	publish(f, "p", "a", created)
	publish(f, "p", "b", created)
	publish(f, "p", "a", started)
	publish(f, "q", "c", started)
	if st := f.Stats(); st.Coalesced != 0 {
		t.Fatalf("%+v", st)
	}
	publish(f, "p", "a", stopped) // one too many
	if st := f.Stats(); st.Coalesced != 2 || st.Queued != 3 {
		t.Fatalf("%+v", st)
	}
	publish(f, "p", "b", deleted)
	equal(t, drain(t, s), "c:S", "a:X", "b:D")

	publish(f, "p", "a", deleted) // it has caught up, so it gets every event again
	publish(f, "q", "c", stopped)
	publish(f, "q", "c", deleted)
	equal(t, drain(t, s), "a:D", "c:X", "c:D")
}

func TestTheQueueOfASubscriberThatNeverCatchesUpDoesNotGrow(t *testing.T) {
	f := New(Config{Queue: 100})
	s := f.Subscribe()
	publish(f, "p", "c", created)
	for range 100_000 {
		publish(f, "p", "c", started)
		if ev, err := s.take(); ev == nil || err != nil {
			t.Fatal(ev, err)
		}
	}
	if n := cap(s.queue.complete); n > 200 {
		t.Fatalf("the queue has room for %d events, and one waits", n)
	}
	s.Close()
	if s.queue.complete != nil {
		t.Fatal("a closed subscription holds on to events")
	}
}

func TestAFullQueueDropsTheOldestDeletedFirst(t *testing.T) {
	f := New(Config{Queue: 1, Backlog: 3})
	s := f.Subscribe()
	publish(f, "p", "a", started)
	publish(f, "p", "b", deleted)
	publish(f, "p", "c", deleted)
	publish(f, "p", "d", stopped)
	if st := f.Stats(); st.Dropped != 1 {
		t.Fatalf("%+v", st)
	}
	publish(f, "p", "e", started)
	publish(f, "p", "f", started)
	equal(t, drain(t, s), "d:X", "e:S", "f:S")
	if st := f.Stats(); st.Dropped != 3 {
		t.Fatalf("%+v", st)
	}
}
