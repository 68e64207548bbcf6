// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// run makes a Runner and starts it.
func run[T comparable](t *testing.T, cfg Config, h Handler[id, T]) *Runner[id, T] {
	t.Helper()
	r := NewRunner(cfg, h, nil)
	start(t, r)
	return r
}

// start runs r until the end of the test.
func start[T comparable](t *testing.T, r *Runner[id, T]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// With a back-off map that all IDs share, an event that arrives while the attempt on its ID fails
// is overwritten, or lost.
func TestAnEventOfferedWhileAnAttemptIsFailingIsHandledAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled []string
		failing := true
		var r *Runner[id, string]
		r = run(t, Config{}, func(_ context.Context, a Attempt[id, string]) Result {
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
		if err := r.idle(t.Context(), "c1"); err != nil {
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
		r := run(t, Config{Rand: func() float64 { return 0 }}, func(_ context.Context, a Attempt[id, int]) Result {
			waits = append(waits, time.Since(last))
			last = time.Now()
			if a.N == 12 {
				return Done()
			}
			return Retry(errors.New("no"))
		})
		r.Offer("c1", 1)
		_ = r.idle(t.Context(), "c1")
		s := time.Second
		want := []time.Duration{0, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s}
		if !slices.Equal(waits, want) {
			t.Fatalf("waits %v", waits)
		}
	})
}

func TestJitterOnlyProlongs(t *testing.T) {
	m := NewMachine[id, int](Config{Backoff: Backoff{Jitter: 0.1}, Rand: func() float64 { return 0.5 }})
	if d := m.backoff(0); d != 1050*time.Millisecond {
		t.Fatalf("got %v", d)
	}
}

// PROPERTIES 3.
func TestAThousandStuckLanesDoNotDelayAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		r := run(t, Config{}, func(ctx context.Context, a Attempt[id, int]) Result {
			if a.Key != "c1001" {
				<-free // whatever its deadline is
			}
			return Done()
		})
		for i := range 1000 {
			r.Offer(id(fmt.Sprint("c", i)), 1)
		}
		began := time.Now()
		r.Offer("c1001", 1)
		if err := r.idle(t.Context(), "c1001"); err != nil || time.Since(began) != 0 {
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
		r := run(t, Config{}, func(ctx context.Context, a Attempt[id, int]) Result {
			if a.N == 1 {
				<-ctx.Done()
				took = time.Since(began)
				return Retry(ctx.Err())
			}
			return Done()
		})
		r.Offer("c1", 1)
		_ = r.idle(t.Context(), "c1")
		if took != 10*time.Second {
			t.Fatalf("took %v", took)
		}
	})
}

func TestAPokeTriesNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := run(t, Config{}, func(_ context.Context, a Attempt[id, int]) Result {
			if a.N == 1 {
				return Retry(errors.New("no"))
			}
			return Done()
		})
		r.Offer("c1", 1)
		synctest.Wait()
		r.Poke("c1")
		_ = r.idle(t.Context(), "c1")
		if time.Since(began) != 0 {
			t.Fatalf("waited %v", time.Since(began))
		}
	})
}

// PROPERTIES 18: what waits in a long back-off is not recorded within 2 s of the disk having room.
func TestRetryWithinNeverWaitsLongerThanItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		var last time.Time
		cfg := Config{Backoff: Backoff{Min: 300 * time.Millisecond, Jitter: 0.5}, Rand: func() float64 { return 1 }}
		r := run(t, cfg, func(_ context.Context, a Attempt[id, int]) Result {
			if a.N > 1 {
				waits = append(waits, time.Since(last))
			}
			last = time.Now()
			if a.N == 600 {
				return Done()
			}
			return RetryWithin(errors.New("no space left on device"), time.Second)
		})
		r.Offer("c1", 1)
		_ = r.idle(t.Context(), "c1")
		if waits[0] != 450*time.Millisecond || waits[1] != 900*time.Millisecond || slices.Max(waits) != time.Second {
			t.Fatalf("waits %v", waits)
		}
	})
}

// PROPERTIES 21: work that takes 30 s was cut off after 10 s and began again, for ever. Whoever
// waits for it pokes its lane now and then.
func TestSlowWorkIsDoneAlthoughItsLaneIsPoked(t *testing.T) {
	for _, poked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var spans []time.Duration
			r := run(t, Config{}, func(ctx context.Context, a Attempt[id, string]) Result {
				spans = append(spans, time.Until(a.Deadline))
				select {
				case <-time.After(30 * time.Second):
					return Done()
				case <-ctx.Done():
					return Retry(ctx.Err())
				}
			})
			r.Offer("c1", "release")
			for ended := false; !ended; {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				ended = r.idle(ctx, "c1") == nil
				cancel()
				if poked {
					r.Poke("c1")
				}
			}
			want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second}
			if !slices.Equal(spans, want) {
				t.Fatalf("attempts of %v, want %v", spans, want)
			}
		})
	}
}

func TestADeadlineGrowsOnlyForAttemptsThatRanPastIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spans []time.Duration
		results := []func(ctx context.Context) Result{
			func(context.Context) Result { return Retry(errors.New("connection refused")) },
			func(ctx context.Context) Result { <-ctx.Done(); return RetryWithin(ctx.Err(), time.Second) },
			func(ctx context.Context) Result { <-ctx.Done(); return Retry(ctx.Err()) },
			func(context.Context) Result { return Retry(errors.New("connection refused")) },
			func(ctx context.Context) Result { <-ctx.Done(); return Retry(ctx.Err()) },
			func(ctx context.Context) Result { <-ctx.Done(); return Retry(ctx.Err()) },
			func(ctx context.Context) Result { <-ctx.Done(); return Done() },
			func(context.Context) Result { return Done() }, // the next item
		}
		cfg := Config{MaxDeadline: 50 * time.Second}
		r := run(t, cfg, func(ctx context.Context, a Attempt[id, string]) Result {
			spans = append(spans, time.Until(a.Deadline)/time.Second)
			return results[len(spans)-1](ctx)
		})
		r.Offer("c1", "release")
		r.Offer("c1", "reap")
		_ = r.idle(t.Context(), "c1")
		if want := []time.Duration{10, 10, 10, 20, 20, 40, 50, 10}; !slices.Equal(spans, want) {
			t.Fatalf("attempts of %d seconds, want %d", spans, want)
		}
	})
}

type ended []error

func (e *ended) Ended(_ id, _ int, _ time.Duration, r Result) { *e = append(*e, r.Err()) }

func TestAPanicIsAFailedAttemptAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen ended
		oops := errors.New("oops")
		r := NewRunner(Config{}, func(_ context.Context, a Attempt[id, int]) Result {
			if a.N == 1 {
				panic(oops)
			}
			return Done()
		}, &seen)
		start(t, r)
		r.Offer("c1", 1)
		synctest.Wait()
		if s := r.Snapshot(); len(s) != 1 || s[0].Err != "attempt 1 on c1 panicked: oops" {
			t.Fatalf("%+v", s)
		}
		var p *PanicError
		if len(seen) != 1 || !errors.As(seen[0], &p) || p.Key != "c1" || p.N != 1 || !errors.Is(p, oops) ||
			!strings.Contains(string(p.Stack), t.Name()) {
			t.Fatalf("the observer was notified of %v, stack %s", seen, p.Stack)
		}
		if err := r.idle(t.Context(), "c1"); err != nil || len(seen) != 2 || seen[1] != nil {
			t.Fatal(err, seen)
		}
	})
}

func TestStopEndsWhatIsInFlightAndKeepsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(Config{}, func(ctx context.Context, a Attempt[id, int]) Result {
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
		r := NewRunner(Config{}, func(context.Context, Attempt[id, int]) Result { return Done() }, nil)
		r.Offer("c1", 1) // not running
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.idle(ctx, "c1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(r.mu.idle) != 0 {
			t.Fatal("a waiter that left is remembered")
		}
	})
}

// PROPERTIES 35: whoever waits for a lane that has failed for long has it tried now, and again
// within a second whenever it fails while he waits.
func TestALaneThatSomebodyWaitsForIsTriedEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var well Event
		var tried atomic.Int64
		r := run(t, Config{}, func(context.Context, Attempt[id, string]) Result {
			tried.Add(1)
			if !well.Happened() {
				return Retry(errors.New("no"))
			}
			return Done()
		})
		r.Offer("c1", "undo")
		time.Sleep(30 * time.Minute)
		before := tried.Load()
		w := r.Wait("c1")
		defer w.End()
		time.Sleep(59500 * time.Millisecond) // between two of them
		if n := tried.Load() - before; n != 60 {
			t.Errorf("tried %d times in a minute", n)
		}
		well.Happen()
		healed := time.Now()
		<-well.Done(w)
		if err := w.Idle(t.Context()); err != nil || time.Since(healed) > time.Second {
			t.Errorf("it took %v: %v", time.Since(healed), err)
		}
		w.End()
		if r.Awaited("c1") {
			t.Error("somebody still waits")
		}
	})
}
