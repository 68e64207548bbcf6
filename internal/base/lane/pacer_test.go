// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// admitted is how long the pacer keeps the release of a unit waiting.
func admitted(ctx context.Context, p *Pacer, id string, hurried <-chan struct{}) time.Duration {
	began := time.Now()
	done, err := p.Admit(ctx, id, hurried)
	if err != nil {
		panic(err)
	}
	done()
	return time.Since(began)
}

// PROPERTIES 3: a release keeps out of the way of the exits of others, for a bounded time.
func TestAReleaseKeepsOutOfTheWayOfTheExitsOfOthers(t *testing.T) {
	const ms = time.Millisecond
	hurried := make(chan struct{})
	close(hurried)
	for _, tc := range []struct {
		name    string
		before  func(p *Pacer)
		hurried <-chan struct{}
		want    time.Duration
	}{
		{"an exit that comes alone", func(p *Pacer) {
			p.Reported("a")
			p.Settle("a")()
			p.Reported("a") // by another witness
		}, nil, 0},
		{"another exit just before", func(p *Pacer) {
			p.Reported("b")
			time.Sleep(10 * ms)
			p.Reported("a")
		}, nil, 50 * ms},
		{"another exit just after", func(p *Pacer) {
			p.Reported("a")
			time.Sleep(10 * ms)
			p.Reported("b")
		}, nil, 50 * ms},
		{"another exit a while ago", func(p *Pacer) {
			p.Settle("b")()
			time.Sleep(60 * ms)
			p.Reported("a")
		}, nil, 0},
		{"a correction of its own in flight", func(p *Pacer) {
			p.Settle("a")
			p.Settle("a")()
		}, nil, 0},
		{"another exit that is not settled", func(p *Pacer) { p.Settle("b") }, nil, time.Second},
		{"exits without end", func(p *Pacer) {
			go func() {
				for i := range 100 {
					p.Reported(fmt.Sprint("b", i))
					time.Sleep(20 * ms)
				}
			}()
			time.Sleep(ms)
		}, nil, time.Second},
		{"young releases that hang", func(p *Pacer) {
			for i := range p.most {
				hanging, _ := p.Admit(context.Background(), fmt.Sprint("b", i), nil)
				_ = hanging // is never called
			}
		}, nil, 100 * ms},
		{"somebody waits", func(p *Pacer) { p.Settle("b") }, hurried, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewPacer(2)
				tc.before(p)
				if got := admitted(t.Context(), p, "a", tc.hurried); got != tc.want {
					t.Errorf("the release waited for %v, want %v", got, tc.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// herd lets the releases of many units begin, the oldest first, each of which takes a while. It
// returns in which order they began, how long the last one waited, and how many ran at once at
// most.
func herd(ctx context.Context, p *Pacer, units int, takes time.Duration) (order []int, last time.Duration, most int) {
	began := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	running := 0
	for i := range units {
		wg.Go(func() {
			done, err := p.Admit(ctx, fmt.Sprint("u", i), nil)
			if err != nil {
				panic(err)
			}
			mu.Lock()
			order, last = append(order, i), time.Since(began)
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			running--
			mu.Unlock()
			done()
		})
		time.Sleep(time.Microsecond)
	}
	wg.Wait()
	return order, last, most
}

// Exits go on for longer than releases wait for them. All 500 releases that waited began in the
// same instant, after a second, and took the processors from the exits.
func TestReleasesThatHaveWaitedBeginAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(2)
		p.Settle("b")
		order, last, most := herd(t.Context(), p, 500, 90*time.Millisecond)
		if most > p.most || !slices.IsSorted(order) {
			t.Errorf("%d releases ran at once, want %d; they began in the order %v", most, p.most, order)
		}
		want := p.patience + 90*time.Millisecond*time.Duration(500/p.most)
		if last > want {
			t.Errorf("the last one began after %v, want %v", last, want)
		}
		time.Sleep(time.Minute)
		if p.young != 0 || len(p.waiting) != 0 {
			t.Errorf("%d young, %d wait", p.young, len(p.waiting))
		}
	})
}

// Releases that hang delay the others, but not for ever: some begin in each tenth of a second.
func TestReleasesThatHangDelayOthersForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(2)
		order, last, _ := herd(t.Context(), p, 50, time.Hour)
		if want := p.youth * time.Duration(50/p.most+1); len(order) != 50 || last > want {
			t.Errorf("%d began, the last one after %v, want %v", len(order), last, want)
		}
	})
}

// An attempt that is over before the turn of its release leaves the turn to the next attempt.
func TestAReleaseKeepsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(2)
		p.youth = time.Hour
		for i := range p.most {
			_, _ = p.Admit(t.Context(), fmt.Sprint("hangs", i), nil)
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := p.Admit(short, "old", nil); !errors.Is(err, ErrTurn) || !p.Waits("old") {
			t.Fatal(err)
		}
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, id := range []string{"young", "old"} {
			wg.Go(func() {
				_, err := p.Admit(t.Context(), id, nil)
				mu.Lock()
				defer mu.Unlock()
				if order = append(order, id); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		p.mu.Lock()
		p.most, p.young = 1, 1
		p.mu.Unlock()
		p.leave()
		synctest.Wait()
		p.leave()
		wg.Wait()
		if !slices.Equal(order, []string{"old", "young"}) {
			t.Errorf("they began in the order %v", order)
		}
		// What is gone, and what somebody waits for, does not wait any more.
		p.mu.Lock()
		p.young = p.most
		p.mu.Unlock()
		hurried := make(chan struct{})
		wg.Go(func() {
			if _, err := p.Admit(t.Context(), "hurried", hurried); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(hurried)
		wg.Wait()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Admit(over, "gone", nil); !errors.Is(err, ErrTurn) {
			t.Error(err)
		}
		p.Forget("gone")
		if len(p.waiting) != 0 {
			t.Errorf("%d wait", len(p.waiting))
		}
		time.Sleep(time.Minute)
	})
}
