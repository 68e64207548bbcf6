// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func publish(f *Feed, pod, id string, what runtimeapi.ContainerEventType) *runtimeapi.ContainerEventResponse {
	ev := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: what, CreatedAt: f.Stamp(pod, time.Now()),
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: pod},
	}
	f.Publish(ev)
	return ev
}

// drain takes everything that waits.
func drain(s *Subscription) []*runtimeapi.ContainerEventResponse {
	var all []*runtimeapi.ContainerEventResponse
	for {
		ev, _ := s.take(time.Now())
		if ev == nil {
			return all
		}
		all = append(all, ev)
	}
}

// PROPERTIES 7: a subscriber that stops reading harms nobody and finds the latest states.
func TestAStalledSubscriberHarmsNoOne(t *testing.T) {
	f := New(Config{Queue: 100})
	stalled, reader := f.Subscribe(), f.Subscribe()
	for i := range 5000 {
		id := fmt.Sprint(i % 50)
		publish(f, "p", id, runtimeapi.ContainerEventType(i/50%3))
		if got := drain(reader); len(got) != 1 {
			t.Fatalf("the reader got %d events", len(got))
		}
	}
	got := drain(stalled)
	if len(got) > 100 {
		t.Fatalf("%d events kept", len(got))
	}
	last := map[string]runtimeapi.ContainerEventType{}
	for _, ev := range got {
		last[ev.ContainerId] = ev.ContainerEventType
	}
	for i := range 50 {
		if want := runtimeapi.ContainerEventType((5000/50 - 1) % 3); last[fmt.Sprint(i)] != want {
			t.Errorf("container %d: last heard %v, want %v", i, last[fmt.Sprint(i)], want)
		}
	}
}

// PROPERTIES 8: gone during 500 exits, then back.
func TestASubscriberThatWasGoneGetsEveryFinalState(t *testing.T) {
	f := New(Config{Queue: 100})
	s := f.Subscribe()
	for i := range 500 {
		publish(f, "p", fmt.Sprint(i), created)
	}
	drain(s)
	s.Close()
	for i := range 500 {
		publish(f, "p", fmt.Sprint(i), stopped)
	}
	last := map[string]runtimeapi.ContainerEventType{}
	for _, ev := range drain(f.Subscribe()) {
		last[ev.ContainerId] = ev.ContainerEventType
	}
	for i := range 500 {
		if last[fmt.Sprint(i)] != stopped {
			t.Fatalf("%d: %v", i, last[fmt.Sprint(i)])
		}
	}
}

func TestWhatABrokenStreamMayHaveLostIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		s := f.Subscribe()
		publish(f, "p", "old", stopped)
		drain(s)
		time.Sleep(time.Minute)
		publish(f, "p", "new", stopped)
		drain(s)
		s.Close()
		s.Close()
		got := drain(f.Subscribe())
		if len(got) != 1 || got[0].ContainerId != "new" {
			t.Fatalf("%v", got)
		}
	})
}

// PROPERTIES 9: CREATED < STARTED < STOPPED < DELETED, stamps strictly rising.
func TestTenThousandShortContainersInOrder(t *testing.T) {
	f := New(Config{Queue: 1 << 20})
	subs := []*Subscription{f.Subscribe(), f.Subscribe(), f.Subscribe()}
	var wg sync.WaitGroup
	for p := range 10 {
		wg.Go(func() {
			for i := range 1000 {
				for _, what := range []runtimeapi.ContainerEventType{created, started, stopped, deleted} {
					publish(f, fmt.Sprint("p", p), fmt.Sprintf("p%d-%d", p, i), what)
				}
			}
		})
	}
	wg.Wait()
	for _, s := range subs {
		stamp, next := map[string]int64{}, map[string]int32{}
		for _, ev := range drain(s) {
			p := ev.PodSandboxStatus.Id
			if ev.CreatedAt <= stamp[p] || int32(ev.ContainerEventType) != next[ev.ContainerId] {
				t.Fatalf("%v after stamp %d, wanted type %d", ev, stamp[p], next[ev.ContainerId])
			}
			stamp[p] = ev.CreatedAt
			next[ev.ContainerId]++
		}
		if len(next) != 10_000 {
			t.Fatalf("%d containers", len(next))
		}
	}
}

// PROPERTIES 12: nobody takes anything.
func TestAHundredThousandEventsWithoutAConsumerAreBounded(t *testing.T) {
	for _, subscribed := range []bool{false, true} {
		f := New(Config{Queue: 1000})
		if subscribed {
			f.Subscribe()
		}
		before := runtime.NumGoroutine()
		for i := range 25_000 {
			for _, what := range []runtimeapi.ContainerEventType{created, started, stopped, deleted} {
				publish(f, fmt.Sprint("p", i), fmt.Sprint(i), what)
			}
			f.Forget(fmt.Sprint("p", i))
		}
		st := f.Stats()
		if st.Queued > 2001 || len(f.mu.stamps) != 0 || runtime.NumGoroutine() > before {
			t.Fatalf("subscribed %v: %+v, %d stamps", subscribed, st, len(f.mu.stamps))
		}
	}
}

func TestStampsRiseWhenTheClockDoesNot(t *testing.T) {
	f := New(Config{})
	now := time.Unix(5, 0)
	a, b, c := f.Stamp("p", now), f.Stamp("p", now.Add(-time.Hour)), f.Stamp("q", now)
	if b <= a || c != now.UnixNano() {
		t.Fatal(a, b, c)
	}
}

func TestNextWaitsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		s := f.Subscribe()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Second); publish(f, "p", "c", created); f.Close() }()
		if ev, err := s.Next(t.Context()); err != nil || ev.ContainerId != "c" {
			t.Fatal(ev, err)
		}
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		if _, err := f.Subscribe().Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	})
}

// Whoever reads in whatever rhythm: order per pod holds, and the last event heard of each container
// is the last that was published.
func TestAnyRhythm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 3))
	for range 200 {
		f := New(Config{Queue: 1 + r.IntN(8)})
		subs := []*Subscription{f.Subscribe(), f.Subscribe()}
		heard := []map[string]*runtimeapi.ContainerEventResponse{{}, {}}
		stamp := []int64{0, 0}
		published := map[string]*runtimeapi.ContainerEventResponse{}
		read := func(i, n int) {
			for range n {
				ev, _ := subs[i].take(time.Now())
				if ev == nil {
					return
				}
				if ev.CreatedAt <= stamp[i] {
					t.Fatalf("out of order: %v", ev)
				}
				stamp[i], heard[i][ev.ContainerId] = ev.CreatedAt, ev
			}
		}
		for range 200 {
			id := fmt.Sprint(r.IntN(10))
			published[id] = publish(f, "p", id, runtimeapi.ContainerEventType(r.IntN(3)))
			read(r.IntN(2), r.IntN(3))
		}
		for i := range subs {
			read(i, 1000)
			for id, ev := range published {
				if heard[i][id] != ev {
					t.Fatalf("subscriber %d: last of %s is %v, published %v", i, id, heard[i][id], ev)
				}
			}
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{0, 1, 10} {
		b.Run(fmt.Sprint(n, " subscribers"), func(b *testing.B) {
			f := New(Config{})
			for range n {
				f.Subscribe()
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				publish(f, "p", fmt.Sprint(i%100), stopped)
			}
		})
	}
}
