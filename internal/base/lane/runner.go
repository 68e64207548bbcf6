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

// Handler makes one attempt. Its context ends at the attempt's deadline, and when the runner stops.
// A handler must be idempotent: after a failure the same item is attempted again.
type Handler[K Key, T comparable] func(ctx context.Context, a Attempt[K, T]) Result

// Observer is notified of attempts. It is called without a lock held, by the goroutine of the
// attempt, which it must not block.
type Observer[K Key] interface {
	// Ended reports the end of the n-th attempt on the head of the lane of key. The error of an
	// attempt that panicked is a [*PanicError].
	Ended(key K, n int, took time.Duration, r Result)
}

// PanicError is the error of an attempt whose handler panicked.
type PanicError struct {
	Key   string // the key's String
	N     int    // of the attempt
	Value any    // the value of the handler's panic
	Stack []byte // of the goroutine that panicked
}

// Error names the attempt and the value. It leaves the stack to the code that logs it.
func (e *PanicError) Error() string {
	return fmt.Sprintf("attempt %d on %s panicked: %v", e.N, e.Key, e.Value)
}

// Unwrap returns the value that the handler panicked with, if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Runner drives a [Machine]. It owns the lock, the clock and the goroutines: one for each attempt
// in flight, and one for all that waits. Its methods may be called from any goroutine.
type Runner[K Key, T comparable] struct {
	handle Handler[K, T]
	obs    Observer[K]

	wake chan struct{} // holds one "look again"

	mu struct {
		sync.Mutex
		m    *Machine[K, T]
		idle map[K][]chan struct{} // closed when the lane is idle
	}
}

// NewRunner makes a runner. obs may be nil. Offers are accepted before Run is called, too.
func NewRunner[K Key, T comparable](cfg Config, h Handler[K, T], obs Observer[K]) *Runner[K, T] {
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	r := &Runner[K, T]{handle: h, obs: obs, wake: make(chan struct{}, 1)}
	r.mu.m = NewMachine[K, T](cfg)
	r.mu.idle = map[K][]chan struct{}{}
	return r
}

// Offer puts an item into the lane of key. It never blocks. It reports false, and drops the item,
// when the lane is full.
func (r *Runner[K, T]) Offer(key K, item T) bool {
	r.mu.Lock()
	ok := r.mu.m.Offer(time.Now(), key, item)
	r.mu.Unlock()
	r.look()
	return ok
}

// Poke lets a lane that backs off try now. It is a no-op for a lane that is idle or queued.
func (r *Runner[K, T]) Poke(key K) {
	r.mu.Lock()
	r.mu.m.Poke(time.Now(), key)
	r.mu.Unlock()
	r.look()
}

func (r *Runner[K, T]) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Snapshot lists the lanes that are not idle, sorted by ID.
func (r *Runner[K, T]) Snapshot() []Lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.m.Snapshot(time.Now())
}

// Run makes attempts until ctx ends. Then it begins no more, ends the contexts of those in flight,
// waits for them and returns nil. Items that are not done stay in their lanes.
func (r *Runner[K, T]) Run(ctx context.Context) error {
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

// begin starts every attempt whose time has come. It returns the time at which the next one is due.
func (r *Runner[K, T]) begin(ctx context.Context, attempts *sync.WaitGroup) (time.Time, bool) {
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

func (r *Runner[K, T]) attempt(ctx context.Context, a Attempt[K, T]) {
	ctx, cancel := context.WithDeadline(ctx, a.Deadline)
	defer cancel()
	began := time.Now()
	res := r.guarded(ctx, a)
	if r.obs != nil {
		r.obs.Ended(a.Key, a.N, time.Since(began), res)
	}
	r.mu.Lock()
	_ = r.mu.m.Done(time.Now(), a, res) // it cannot be stale: only this goroutine has a
	var waiters []chan struct{}
	if !r.mu.m.Busy(a.Key) {
		waiters = r.mu.idle[a.Key]
		delete(r.mu.idle, a.Key)
	}
	r.mu.Unlock()
	for _, w := range waiters {
		close(w)
	}
	r.look()
}

// guarded turns a panic of the handler into a failed attempt, so that it stays within its lane.
func (r *Runner[K, T]) guarded(ctx context.Context, a Attempt[K, T]) (res Result) {
	defer func() {
		if v := recover(); v != nil {
			res = Retry(&PanicError{Key: a.Key.String(), N: a.N, Value: v, Stack: debug.Stack()})
		}
	}()
	return r.handle(ctx, a)
}
