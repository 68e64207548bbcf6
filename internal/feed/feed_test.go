// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

var life = []runtimeapi.ContainerEventType{created, started, stopped, deleted}

type event = runtimeapi.ContainerEventResponse

func publish(f *Feed, pod, id string, what runtimeapi.ContainerEventType) *event {
	ev := &event{
		ContainerId: id, ContainerEventType: what, CreatedAt: f.Stamp(pod, time.Now()),
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: pod},
	}
	f.Publish(ev)
	return ev
}

// drain takes what waits, and leaves Next again without waiting for more, as a client that has its hands full.
func drain(t testing.TB, s *Subscription) []*event {
	t.Helper()
	var all []*event
	for {
		ev, err := s.take()
		if err != nil {
			t.Fatal(err)
		}
		if ev == nil {
			s.giveUp()
			return all
		}
		all = append(all, ev)
	}
}

// waitIn takes what waits and leaves s as Next does that waits for more.
func waitIn(t testing.TB, s *Subscription) {
	t.Helper()
	for {
		if ev, err := s.take(); err != nil {
			t.Fatal(err)
		} else if ev == nil {
			return
		}
	}
}

// newest is the last event of each container.
func newest(events []*event) map[string]*event {
	m := map[string]*event{}
	for _, ev := range events {
		m[ev.ContainerId] = ev
	}
	return m
}

func checkRising(t testing.TB, events []*event) {
	t.Helper()
	last := map[string]int64{}
	for i, ev := range events {
		pod := podOf(ev)
		if ev.CreatedAt <= last[pod] {
			t.Fatalf("event %d of pod %s has stamp %d after %d", i, pod, ev.CreatedAt, last[pod])
		}
		last[pod] = ev.CreatedAt
	}
}

func names(events []*event) (all []string) {
	for _, ev := range events {
		all = append(all, fmt.Sprintf("%s:%s", ev.ContainerId, short[ev.ContainerEventType]))
	}
	return all
}

var short = map[runtimeapi.ContainerEventType]string{created: "C", started: "S", stopped: "X", deleted: "D"}

func equal(t testing.TB, got []*event, want ...string) {
	t.Helper()
	if g, w := fmt.Sprint(names(got)), fmt.Sprint(want); g != w {
		t.Fatalf("got %s, want %s", g, w)
	}
}

// PROPERTIES 7.
func TestStalledSubscriberAmongLiveOnesHarmsNoOne(t *testing.T) {
	f := New(Config{Queue: 100})
	stalled, live := f.Subscribe(), []*Subscription{f.Subscribe(), f.Subscribe()}
	want := map[string]*event{}
	for i := range 6000 {
		id := fmt.Sprint("c", i%50)
		want[id] = publish(f, "p", id, life[i/50%3])
		for _, s := range live {
			if got := drain(t, s); len(got) != 1 || got[0] != want[id] {
				t.Fatalf("event %d: a live subscriber got %v", i, names(got))
			}
		}
	}
	if st := f.Stats(); st.Longest > 100 || st.Dropped != 0 || st.Coalesced == 0 {
		t.Fatalf("%+v", st)
	}
	got := drain(t, stalled)
	checkRising(t, got)
	for id, ev := range newest(got) {
		if ev != want[id] {
			t.Errorf("%s: got %v, want %v", id, ev, want[id])
		}
		delete(want, id)
	}
	if len(want) != 0 {
		t.Errorf("%d containers were never heard of", len(want))
	}
}

// PROPERTIES 8.
func TestSubscriberGoneDuringExitsGetsEveryFinalState(t *testing.T) {
	tests := []struct {
		name    string
		others  int           // other subscribers, which read all along
		away    time.Duration // gone for so long
		thief   bool          // another subscribes first, and stays
		stalled time.Duration // did not read for so long before it was gone
	}{
		{name: "alone", away: time.Second},
		{name: "alone, for a day", away: 24 * time.Hour},
		{name: "others listen meanwhile", others: 2, away: time.Minute},
		{name: "another comes first", away: time.Minute, thief: true},
		{name: "another comes first, after a day", away: 24 * time.Hour, thief: true},
		{name: "it had stalled for an hour", others: 1, away: time.Minute, stalled: time.Hour},
		{name: "it had stalled for an hour, alone for a day", away: 24 * time.Hour, stalled: time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(Config{Queue: 100, Keep: 5 * time.Minute})
				var others []*Subscription
				for range tt.others {
					others = append(others, f.Subscribe())
				}
				s := f.Subscribe()
				want := map[string]*event{}
				exit := func(from, to int) {
					for i := range to - from {
						id := fmt.Sprint("c", from+i)
						want[id] = publish(f, "p", id, stopped)
					}
					for _, o := range others {
						waitIn(t, o)
					}
				}
				exit(0, 50)
				drain(t, s) // handed out, and lost on the way
				time.Sleep(tt.stalled)
				exit(50, 100)
				s.Close()
				exit(100, 350)
				time.Sleep(tt.away)
				if tt.thief {
					others = append(others, f.Subscribe())
					waitIn(t, others[len(others)-1])
					time.Sleep(time.Minute)
				}
				exit(350, 500)
				got := newest(drain(t, f.Subscribe()))
				for id, ev := range want {
					if got[id] != ev {
						t.Errorf("%s: got %v", id, got[id])
					}
				}
				if st := f.Stats(); st.Dropped != 0 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// PROPERTIES 9.
func TestTenThousandShortContainersInOrder(t *testing.T) {
	const pods, each = 10, 1000
	f := New(Config{Queue: pods * each * len(life)})
	subs := []*Subscription{f.Subscribe(), f.Subscribe(), f.Subscribe()}
	heard := make([][]*event, len(subs))
	var readers, pub sync.WaitGroup
	for i, s := range subs {
		readers.Go(func() {
			for {
				ev, err := s.Next(t.Context())
				if err != nil {
					return
				}
				heard[i] = append(heard[i], ev)
			}
		})
	}
	for p := range pods {
		pub.Go(func() {
			for i := range each {
				for _, what := range life {
					publish(f, fmt.Sprint("p", p), fmt.Sprintf("p%d-c%d", p, i), what)
				}
			}
		})
	}
	pub.Wait()
	f.Close()
	readers.Wait()
	for _, got := range heard {
		checkRising(t, got)
		next := map[string]int{}
		for _, ev := range got {
			if int(ev.ContainerEventType) != next[ev.ContainerId] {
				t.Fatalf("%v, wanted %v", ev, life[next[ev.ContainerId]])
			}
			next[ev.ContainerId]++
		}
		if len(got) != pods*each*len(life) {
			t.Fatalf("%d events", len(got))
		}
	}
	if st := f.Stats(); st.Restamped != 0 {
		t.Fatalf("%+v", st)
	}
}

// PROPERTIES 9: stamps never later than the snapshot they come with.
func TestStampsOnOneClock(t *testing.T) {
	f := New(Config{})
	now := time.Unix(1000, 0)
	first := f.Stamp("p", now)
	if first != now.UnixNano() {
		t.Fatalf("a stamp that need not be raised is the time itself, not %d", first)
	}
	again, back := f.Stamp("p", now), f.Stamp("p", now.Add(-time.Hour))
	if again != first+1 || back != again+1 {
		t.Fatal("a clock that stands, or steps back, still makes stamps rise:", first, again, back)
	}
	if other := f.Stamp("sandbox recreated for the same pod", now.Add(-time.Hour)); other <= back {
		t.Fatal("the kubelet would take the pod's new sandbox for older than its last:", other)
	}
	last := f.Stamp("p", now)
	if seen := f.Instant(now.Add(-time.Hour)); seen < last {
		t.Fatal("a status read after the event looks older than it:", seen, last)
	}
	later := now.Add(time.Hour)
	if seen := f.Instant(later); seen != later.UnixNano() || f.Stamp("p", later) <= seen {
		t.Fatal("an event after a status read looks no newer than it:", seen)
	}
}

func TestPublisherThatMixesUpStampsIsPutInOrderAndCounted(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	for _, stamp := range []int64{10, 10, 3, 0, 12, 100} {
		f.Publish(&event{ContainerId: "c", CreatedAt: stamp, PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "p"}})
	}
	f.Publish(&event{ContainerId: "p", CreatedAt: 100}) // the sandbox itself, no status: the same pod
	f.Publish(&event{ContainerId: "other", CreatedAt: 1})
	var stamps []int64
	for _, ev := range drain(t, s) {
		stamps = append(stamps, ev.CreatedAt)
	}
	if got, want := fmt.Sprint(stamps), "[10 11 12 13 14 100 101 1]"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if st := f.Stats(); st.Restamped != 5 {
		t.Fatalf("%+v", st)
	}
	if next := f.Stamp("p", time.Unix(0, 1)); next <= 101 {
		t.Fatalf("the next stamp, %d, is not above those published", next)
	}
	f.Forget("p")
	f.Forget("p")
	if len(f.pods) != 1 {
		t.Fatalf("stamps kept of %v", f.pods)
	}
}

// PROPERTIES 12.
func TestHundredThousandEventsStayBounded(t *testing.T) {
	const queue, backlog = 500, 1000
	subscribers := map[string]int{"no consumer": 0, "stalled consumers": 3}
	for name, n := range subscribers {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, containers that stay: %v", name, forever), func(t *testing.T) {
				f := New(Config{Queue: queue, Backlog: backlog})
				subs := make([]*Subscription, n)
				for i := range subs {
					subs[i] = f.Subscribe()
				}
				before := runtime.NumGoroutine()
				for i := range 25_000 {
					pod := fmt.Sprint("p", i)
					for j, what := range life {
						id := fmt.Sprint("c", i)
						if forever {
							id, what = fmt.Sprintf("c%d-%d", i, j), created
						}
						publish(f, pod, id, what)
						if st := f.Stats(); st.Longest > backlog || st.Backlog > backlog {
							t.Fatalf("%+v", st)
						}
					}
					f.Forget(pod)
				}
				if len(f.pods) != 0 || len(f.debts) != 0 || runtime.NumGoroutine() > before {
					t.Fatalf("%d pods, %d goroutines before, %d after", len(f.pods), before, runtime.NumGoroutine())
				}
				if st := f.Stats(); st.Dropped == 0 {
					t.Fatalf("what was dropped is not counted: %+v", st)
				}
				for _, s := range append(subs, f.Subscribe()) {
					got := drain(t, s)
					checkRising(t, got)
					if last := got[len(got)-1]; len(got) != backlog || podOf(last) != "p24999" {
						t.Fatalf("%d events, the last %v", len(got), last)
					}
					s.Close()
				}
			})
		}
	}
}

func TestSubscribersThatComeAndGoLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		kubelet := f.Subscribe()
		for i := range 10_000 {
			s := f.Subscribe()
			publish(f, "p", fmt.Sprint("c", i), stopped)
			drain(t, s)
			waitIn(t, kubelet)
			s.Close()
			s.Close()
			time.Sleep(time.Second)
			if len(f.debts) > grain+2 {
				t.Fatalf("%d debts kept", len(f.debts))
			}
		}
		// Sent again and again to those that came, and forgotten all the same.
		if st := f.Stats(); st.Subscribers != 1 || st.Queued != 0 || st.Backlog > 1000 {
			t.Fatalf("%+v", st)
		}
	})
}

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

	publish(f, "p", "a", deleted) // it caught up: every event again
	publish(f, "q", "c", stopped)
	publish(f, "q", "c", deleted)
	equal(t, drain(t, s), "a:D", "c:X", "c:D")
}

func TestASubscriberNeverQuiteLevelHoldsNoMoreThanWaits(t *testing.T) {
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
		t.Fatalf("room for %d events, and one waits", n)
	}
	s.Close()
	if s.queue.complete != nil {
		t.Fatal("a closed subscription holds on to events")
	}
}

func TestOverTheCapTheOldestDeletedGoesFirst(t *testing.T) {
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

func TestTheFirstSubscriberHearsWhatWasBeforeIt(t *testing.T) {
	f := New(Config{})
	for _, what := range life[:3] {
		publish(f, "p", "a", what)
	}
	publish(f, "p", "b", created)
	equal(t, drain(t, f.Subscribe()), "a:X", "b:C")
}

func TestAJoinerHearsTheLastKeepAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{Keep: time.Minute})
		kubelet := f.Subscribe()
		read := func() { waitIn(t, kubelet) }
		publish(f, "p", "old", stopped)
		read()
		time.Sleep(time.Minute + time.Minute/grain + 1)
		publish(f, "p", "new", stopped)
		read()
		s := f.Subscribe()
		equal(t, drain(t, s), "new:X")
		publish(f, "p", "live", created)
		equal(t, drain(t, s), "live:C")
		read()
		// What was sent again is not younger for it.
		waitIn(t, s)
		time.Sleep(time.Minute + time.Minute/grain + 1)
		equal(t, drain(t, f.Subscribe()))
	})
}

func TestKeepNegativeSendsNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{Keep: -1})
		kubelet := f.Subscribe()
		publish(f, "p", "a", stopped)
		waitIn(t, kubelet)
		time.Sleep(time.Nanosecond)
		late := f.Subscribe()
		equal(t, drain(t, late))
		publish(f, "p", "b", stopped) // not taken by anyone yet
		equal(t, drain(t, f.Subscribe()), "b:X")
	})
}

func TestNextWaitsForAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		s := f.Subscribe()
		got := make(chan *event, 1)
		go func() {
			ev, err := s.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- ev
		}()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("Next returned before there was an event")
		}
		want := publish(f, "p", "c", created)
		if ev := <-got; ev != want {
			t.Fatal(ev)
		}
	})
}

func TestNextEnds(t *testing.T) {
	gone := errors.New("the client is gone")
	tests := []struct {
		name string
		end  func(f *Feed, s *Subscription, cancel context.CancelCauseFunc)
		want error
	}{
		{"with its context", func(_ *Feed, _ *Subscription, cancel context.CancelCauseFunc) { cancel(gone) }, gone},
		{"with the subscription", func(_ *Feed, s *Subscription, _ context.CancelCauseFunc) { s.Close() }, ErrClosed},
		{"with the feed", func(f *Feed, _ *Subscription, _ context.CancelCauseFunc) { f.Close() }, ErrClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(Config{})
				s := f.Subscribe()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				got := make(chan error, 1)
				go func() {
					_, err := s.Next(ctx)
					got <- err
				}()
				synctest.Wait()
				tt.end(f, s, cancel)
				if err := <-got; !errors.Is(err, tt.want) {
					t.Fatal(err)
				}
				if _, err := s.Next(ctx); !errors.Is(err, tt.want) {
					t.Fatal("the second time:", err)
				}
			})
		})
	}
}

func TestNextGivesNothingToAClientThatIsGone(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	publish(f, "p", "c", stopped)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ev, err := s.Next(ctx); ev != nil || !errors.Is(err, context.Canceled) {
		t.Fatal(ev, err)
	}
	s.Close()
	equal(t, drain(t, f.Subscribe()), "c:X")
}

func TestAClosedFeedIsEmptiedAndThenClosed(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	want := publish(f, "p", "c", stopped)
	f.Close()
	f.Close()
	publish(f, "p", "c", deleted)
	if ev, err := s.Next(t.Context()); ev != want || err != nil {
		t.Fatal(ev, err)
	}
	for _, s := range []*Subscription{s, f.Subscribe()} {
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) || !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
		s.Close()
	}
	if st := f.Stats(); st != (Stats{Published: 1}) {
		t.Fatalf("%+v", st)
	}
}
