// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// run runs a Runner inside the bubble and stops it at the test's end.
func run[T any](t *testing.T, cfg Config[T], h Handler[T]) *Runner[T] {
	t.Helper()
	r := NewRunner(cfg, h, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// The race of a shared back-off map: an event that arrives while the attempt on its ID is
// failing was put back over, or lost.
func TestAnEventOfferedWhileAnAttemptIsFailingIsHandledAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled []string
		failing := true
		var r *Runner[string]
		r = run(t, Config[string]{Coalesce: func(w, o string) (string, bool) { return w, w == o }}, func(_ context.Context, a Attempt[string]) Result {
			handled = append(handled, fmt.Sprint(a.Item, a.N))
			if a.Item == "exit" && failing {
				failing = false
				r.Offer("c1", "exit") // arrives during the attempt that is about to fail
				r.Offer("c1", "oom")
				return Retry(errors.New("no"))
			}
			return Done()
		})
		r.Offer("c1", "exit")
		if err := r.Idle(t.Context(), "c1"); err != nil {
			t.Fatal(err)
		}
		want := []string{"exit1", "exit2", "exit1", "oom1"}
		if !slices.Equal(handled, want) {
			t.Fatalf("handled %v, want %v", handled, want)
		}
	})
}

func TestBackoffDoublesToItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		last := time.Now()
		r := run(t, Config[int]{Rand: func() float64 { return 0 }}, func(_ context.Context, a Attempt[int]) Result {
			waits = append(waits, time.Since(last))
			last = time.Now()
			if a.N == 12 {
				return Done()
			}
			return Retry(errors.New("no"))
		})
		r.Offer("c1", 1)
		_ = r.Idle(t.Context(), "c1")
		s := time.Second
		want := []time.Duration{0, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s}
		if !slices.Equal(waits, want) {
			t.Fatalf("waits %v", waits)
		}
	})
}

func TestJitterOnlyProlongs(t *testing.T) {
	m := NewMachine(Config[int]{Backoff: Backoff{Jitter: 0.1}, Rand: func() float64 { return 0.5 }})
	if d := m.backoff(0); d != 1050*time.Millisecond {
		t.Fatalf("got %v", d)
	}
}

func TestAThousandWedgedLanesDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		r := run(t, Config[int]{}, func(ctx context.Context, a Attempt[int]) Result {
			if a.ID != "c1001" {
				<-free // obeys no deadline
			}
			return Done()
		})
		for i := range 1000 {
			r.Offer(fmt.Sprint("c", i), 1)
		}
		began := time.Now()
		r.Offer("c1001", 1)
		if err := r.Idle(t.Context(), "c1001"); err != nil || time.Since(began) != 0 {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		over := 0
		for _, l := range r.Snapshot() {
			if l.State == "overdue" {
				over++
			}
		}
		if over != 1000 {
			t.Fatalf("%d overdue", over)
		}
		close(free)
	})
}

func TestAnAttemptsContextEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var took time.Duration
		r := run(t, Config[int]{}, func(ctx context.Context, a Attempt[int]) Result {
			if a.N == 1 {
				<-ctx.Done()
				took = time.Since(began)
				return Retry(ctx.Err())
			}
			return Done()
		})
		r.Offer("c1", 1)
		_ = r.Idle(t.Context(), "c1")
		if took != 10*time.Second {
			t.Fatalf("took %v", took)
		}
	})
}

func TestAPokeTriesNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := run(t, Config[int]{}, func(_ context.Context, a Attempt[int]) Result {
			if a.N == 1 {
				return Retry(errors.New("no"))
			}
			return Done()
		})
		r.Offer("c1", 1)
		synctest.Wait()
		r.Poke("c1")
		_ = r.Idle(t.Context(), "c1")
		if time.Since(began) != 0 {
			t.Fatalf("waited %v", time.Since(began))
		}
	})
}

func TestAPanicIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[int]{}, func(_ context.Context, a Attempt[int]) Result {
			if a.N == 1 {
				panic("oops")
			}
			return Done()
		})
		r.Offer("c1", 1)
		synctest.Wait()
		if s := r.Snapshot(); len(s) != 1 || s[0].Err == "" {
			t.Fatalf("%+v", s)
		}
		if err := r.Idle(t.Context(), "c1"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStopEndsWhatIsInFlightAndKeepsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(Config[int]{}, func(ctx context.Context, a Attempt[int]) Result {
			<-ctx.Done()
			return Retry(ctx.Err())
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		r.Offer("c1", 1)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if len(r.Snapshot()) != 1 {
			t.Fatal("what was not done is gone")
		}
	})
}

func TestIdleGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(Config[int]{}, func(context.Context, Attempt[int]) Result { return Done() }, nil)
		r.Offer("c1", 1) // not running
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Idle(ctx, "c1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(r.mu.idle) != 0 {
			t.Fatal("a waiter that left is remembered")
		}
	})
}

// model is the obviously right machine: one list of items per ID, looked through from the front.
type model struct {
	items map[string][]int
	fly   map[string]bool
	wake  map[string]time.Time
	fails map[string]int
	poked map[string]bool
}

func FuzzMachine(f *testing.F) {
	seed := rand.Uint64()
	f.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 50 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, ops []byte) { against(t, ops) })
}

func against(t *testing.T, ops []byte) {
	const room = 3
	now := time.Unix(0, 0)
	m := NewMachine(Config[int]{MaxQueue: room, Coalesce: func(w, o int) (int, bool) { return w, w == o }})
	md := model{map[string][]int{}, map[string]bool{}, map[string]time.Time{}, map[string]int{}, map[string]bool{}}
	fly := map[string]Attempt[int]{}
	for _, op := range ops {
		id := string('a' + rune(op>>6))
		switch op & 7 {
		case 0, 1, 2: // offer
			item := int(op>>3) & 1
			rest := md.items[id]
			if md.fly[id] {
				rest = rest[1:]
			}
			want := true
			switch {
			case len(rest) > 0 && rest[len(rest)-1] == item:
			case len(rest) >= room:
				want = false
			default:
				md.items[id] = append(md.items[id], item)
			}
			if got := m.Offer(now, id, item); got != want {
				t.Fatalf("offer %s: %v", id, got)
			}
		case 3: // ready
			for {
				a, ok := m.Ready(now)
				if !ok {
					break
				}
				if md.fly[a.ID] || len(md.items[a.ID]) == 0 || md.items[a.ID][0] != a.Item || md.wake[a.ID].After(now) {
					t.Fatalf("%s handed out %d, model %v flying %v until %v", a.ID, a.Item, md.items[a.ID], md.fly[a.ID], md.wake[a.ID])
				}
				md.fly[a.ID], fly[a.ID] = true, a
			}
			for id, items := range md.items {
				if len(items) > 0 && !md.fly[id] && !md.wake[id].After(now) {
					t.Fatalf("%s was forgotten: %v", id, items)
				}
			}
		case 4: // done
			if a, ok := fly[id]; ok {
				delete(fly, id)
				if err := m.Done(now, a, Done()); err != nil {
					t.Fatal(err)
				}
				md.items[id], md.fly[id], md.fails[id], md.poked[id] = md.items[id][1:], false, 0, false
			}
		case 5: // fail
			if a, ok := fly[id]; ok {
				delete(fly, id)
				if err := m.Done(now, a, Retry(errors.New("no"))); err != nil {
					t.Fatal(err)
				}
				md.fly[id] = false
				if md.poked[id] {
					md.fails[id], md.poked[id], md.wake[id] = 0, false, now
				} else {
					md.wake[id] = now.Add(min(5*time.Minute, time.Second<<md.fails[id]))
					md.fails[id]++
				}
			}
		case 6: // poke
			m.Poke(now, id)
			if md.fly[id] {
				md.poked[id] = true
			} else if md.wake[id].After(now) {
				md.wake[id], md.fails[id] = now, 0
			}
		case 7:
			now = now.Add(time.Duration(op>>3) * 700 * time.Millisecond)
		}
		busy := 0
		for _, items := range md.items {
			if len(items) > 0 {
				busy++
			}
		}
		if m.Len() != busy {
			t.Fatalf("%d lanes, model %d", m.Len(), busy)
		}
	}
}

func BenchmarkMachine(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprint(n, " lanes"), func(b *testing.B) {
			m := NewMachine(Config[int]{})
			now := time.Unix(0, 0)
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprint(i)
				if i > 0 { // the others sleep
					m.Offer(now, ids[i], 1)
					a, _ := m.Ready(now)
					_ = m.Done(now, a, Retry(nil))
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				m.Offer(now, ids[0], 1)
				a, _ := m.Ready(now)
				_ = m.Done(now, a, Done())
			}
		})
	}
}
