// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

// Handler makes one attempt. ctx ends at the attempt's deadline and when the runner stops.
type Handler[T any] func(ctx context.Context, a Attempt[T]) Result

// Observer hears of attempts. Its methods are called without any lock held and must not block.
type Observer interface {
	Began(id string, n int)
	Ended(id string, n int, took time.Duration, r Result)
}

// Runner drives a Machine: it owns the lock, the clock and the goroutines, of which there is one
// per attempt in flight and one for all that wait.
type Runner[T any] struct {
	handle Handler[T]
	obs    Observer

	wake chan struct{} // one slot: "look again"

	mu struct {
		sync.Mutex
		m    *Machine[T]
		idle map[string][]chan struct{} // closed when the lane is idle
	}
}

// NewRunner makes a runner. Offers are taken before Run, too.
func NewRunner[T any](cfg Config[T], h Handler[T], obs Observer) *Runner[T] {
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	r := &Runner[T]{handle: h, obs: obs, wake: make(chan struct{}, 1)}
	r.mu.m = NewMachine(cfg)
	r.mu.idle = map[string][]chan struct{}{}
	return r
}

// Offer puts an item into the lane of id. It never blocks. False: the lane is full.
func (r *Runner[T]) Offer(id string, item T) bool {
	r.mu.Lock()
	ok := r.mu.m.Offer(time.Now(), id, item)
	r.mu.Unlock()
	r.look()
	return ok
}

// Poke lets a lane that backs off try now.
func (r *Runner[T]) Poke(id string) {
	r.mu.Lock()
	r.mu.m.Poke(time.Now(), id)
	r.mu.Unlock()
	r.look()
}

func (r *Runner[T]) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Idle waits until the lane of id has nothing to do, or ctx ends.
func (r *Runner[T]) Idle(ctx context.Context, id string) error {
	r.mu.Lock()
	if !r.mu.m.Busy(id) {
		r.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	r.mu.idle[id] = append(r.mu.idle[id], ch)
	r.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		r.unwait(id, ch)
		return ctx.Err()
	}
}

func (r *Runner[T]) unwait(id string, ch chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.mu.idle[id]
	for i, c := range list {
		if c == ch {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(r.mu.idle, id)
		return
	}
	r.mu.idle[id] = list
}

// Snapshot lists the lanes that are not idle, by ID.
func (r *Runner[T]) Snapshot() []Lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.m.Snapshot(time.Now())
}

// Run makes attempts until ctx ends; then it begins no more, ends the contexts of those in flight,
// waits for them and returns nil. What is left in the lanes stays there.
func (r *Runner[T]) Run(ctx context.Context) error {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if ctx.Err() != nil {
			return nil
		}
		next, some := r.begin(ctx, &attempts)
		var alarm <-chan time.Time
		if some {
			timer.Reset(time.Until(next))
			alarm = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-alarm:
		}
	}
}

// begin starts every attempt whose time has come and says when the next one does.
func (r *Runner[T]) begin(ctx context.Context, attempts *sync.WaitGroup) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		a, ok := r.mu.m.Ready(time.Now())
		if !ok {
			return r.mu.m.NextWake()
		}
		attempts.Go(func() { r.attempt(ctx, a) })
	}
}

func (r *Runner[T]) attempt(ctx context.Context, a Attempt[T]) {
	ctx, cancel := context.WithDeadline(ctx, a.Deadline)
	defer cancel()
	if r.obs != nil {
		r.obs.Began(a.ID, a.N)
	}
	began := time.Now()
	res := r.guarded(ctx, a)
	if r.obs != nil {
		r.obs.Ended(a.ID, a.N, time.Since(began), res)
	}
	r.mu.Lock()
	_ = r.mu.m.Done(time.Now(), a, res) // never stale: this goroutine alone has a
	var waiters []chan struct{}
	if !r.mu.m.Busy(a.ID) {
		waiters = r.mu.idle[a.ID]
		delete(r.mu.idle, a.ID)
	}
	r.mu.Unlock()
	for _, w := range waiters {
		close(w)
	}
	r.look()
}

// guarded turns a panic of the handler into a failed attempt: one ID's trouble stays its own.
func (r *Runner[T]) guarded(ctx context.Context, a Attempt[T]) (res Result) {
	defer func() {
		if p := recover(); p != nil {
			res = Retry(fmt.Errorf("attempt %d on %s panicked: %v\n%s", a.N, a.ID, p, debug.Stack()))
		}
	}()
	return r.handle(ctx, a)
}
