// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// drain takes what waits, and leaves Next without waiting for more, as a client does that is busy.
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

// waitIn takes what waits, and goes on waiting in Next.
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

// newest is the newest event of each container.
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
		t.Errorf("no event of %d containers was delivered", len(want))
	}
}

// PROPERTIES 8.
func TestSubscriberGoneDuringExitsGetsEveryFinalState(t *testing.T) {
	tests := []struct {
		name    string
		others  int           // other subscribers, which read all along
		away    time.Duration // gone for so long
		first   bool          // another one subscribes first, and stays
		stalled time.Duration // did not read for so long before it was gone
	}{
		{name: "alone", away: time.Second},
		{name: "alone, for a day", away: 24 * time.Hour},
		{name: "others are subscribed meanwhile", others: 2, away: time.Minute},
		{name: "another comes first", away: time.Minute, first: true},
		{name: "another comes first, after a day", away: 24 * time.Hour, first: true},
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
				drain(t, s) // handed out, and lost with the stream
				time.Sleep(tt.stalled)
				exit(50, 100)
				s.Close()
				exit(100, 350)
				time.Sleep(tt.away)
				if tt.first {
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
	received := make([][]*event, len(subs))
	var readers, pub sync.WaitGroup
	for i, s := range subs {
		readers.Go(func() {
			for {
				ev, err := s.Next(t.Context())
				if err != nil {
					return
				}
				received[i] = append(received[i], ev)
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
	for _, got := range received {
		checkRising(t, got)
		next := map[string]int{}
		for _, ev := range got {
			if int(ev.ContainerEventType) != next[ev.ContainerId] {
				t.Fatalf("got %v, want %v", ev, life[next[ev.ContainerId]])
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

// PROPERTIES 9: a stamp is not later than the snapshot that it comes with.
func TestStampsOnOneClock(t *testing.T) {
	f := New(Config{})
	now := time.Unix(1000, 0)
	first := f.Stamp("p", now)
	if first != now.UnixNano() {
		t.Fatalf("a stamp that need not be raised is %d instead of the time", first)
	}
	again, back := f.Stamp("p", now), f.Stamp("p", now.Add(-time.Hour))
	if again != first+1 || back != again+1 {
		t.Fatal("stamps do not rise while the clock stands or steps back:", first, again, back)
	}
	if other := f.Stamp("sandbox recreated for the same pod", now.Add(-time.Hour)); other <= back {
		t.Fatal("the kubelet would take the pod's new sandbox for older than its first one:", other)
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

func TestStampsThatDoNotRiseAreRaisedAndCounted(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	for _, stamp := range []int64{10, 10, 3, 0, 12, 100} {
		f.Publish(&event{ContainerId: "c", CreatedAt: stamp, PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "p"}})
	}
	f.Publish(&event{ContainerId: "p", CreatedAt: 100}) // the same pod, without a status
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
				if st := f.Stats(); st.Dropped == 0 && (forever || n > 0) {
					t.Fatalf("what was dropped is not counted: %+v", st)
				}
				if st := f.Stats(); !forever && st.Backlog != 0 {
					t.Fatalf("%d deleted containers are remembered", st.Backlog)
				}
				if forever { // there is something to be replayed
					subs = append(subs, f.Subscribe())
				}
				for _, s := range subs {
					got := drain(t, s)
					checkRising(t, got)
					if len(got) != backlog || podOf(got[len(got)-1]) != "p24999" {
						t.Fatalf("%d events", len(got))
					}
					s.Close()
				}
			})
		}
	}
}

func TestSubscribersThatComeAndGoLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		kubelet := f.Subscribe()
		for i := range 2_000 {
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
		// It was replayed to everyone who came, and forgotten all the same.
		if st := f.Stats(); st.Subscribers != 1 || st.Queued != 0 || st.Backlog > 1000 {
			t.Fatalf("%+v", st)
		}
	})
}
