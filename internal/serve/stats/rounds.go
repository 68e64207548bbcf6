// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// roundPatience is how long calls wait for a round that others began before them. One that takes
// longer is stuck, and theirs begins beside it.
const roundPatience = 5 * time.Second

// rounds lets calls that ask for the same measurement share it. While one round is under way, all
// calls that come wait for the next one: however many they are, they cost one measurement, and no
// call gets figures from before it was made. Their result is shared, and must not be changed.
type rounds[T any] struct {
	measure func(ctx context.Context) (T, error)

	mu   sync.Mutex
	now  *round[T] // the last that has begun, nil once it has ended
	next *round[T] // for which calls wait, nil if there are none
}

// round is one measurement.
type round[T any] struct {
	ctx    context.Context // ends when there are no waiters any more
	cancel context.CancelFunc
	done   chan struct{} // closed when got and err are set
	got    T
	err    error

	waiting int // guarded by the mutex of rounds
}

// get measures, or waits for a measurement that begins after this call. It returns when ctx ends at
// the latest.
func (r *rounds[T]) get(ctx context.Context) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("measure: %w", err)
	}
	w := r.join()
	select {
	case <-w.done:
		return w.got, w.err
	case <-ctx.Done():
		r.leave(w)
		return none, fmt.Errorf("measure: %w", ctx.Err())
	}
}

// join returns the round of a new call.
func (r *rounds[T]) join() *round[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.next
	if w == nil {
		w = &round[T]{done: make(chan struct{})}
		w.ctx, w.cancel = context.WithCancel(context.Background()) //nolint:gosec // run calls it
		r.next = w
		if r.now == nil {
			r.beginLocked(w)
		} else {
			late := time.AfterFunc(roundPatience, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.beginLocked(w)
			})
			context.AfterFunc(w.ctx, func() { late.Stop() })
		}
	}
	w.waiting++
	return w
}

// beginLocked begins a round, unless it has begun, or has no waiters any more. r.mu must be held.
func (r *rounds[T]) beginLocked(w *round[T]) {
	if r.next != w {
		return
	}
	r.now, r.next = w, nil
	go r.run(w)
}

func (r *rounds[T]) run(w *round[T]) {
	w.got, w.err = r.guarded(w.ctx)
	close(w.done)
	w.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != w {
		return // it was stuck, and another one is under way
	}
	r.now = nil
	if r.next != nil {
		r.beginLocked(r.next)
	}
}

// guarded turns a panic into an error: it is on no goroutine of a call, where it would be one.
func (r *rounds[T]) guarded(ctx context.Context) (got T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v: %w\n%s", p, errdefs.ErrInternal, debug.Stack())
		}
	}()
	return r.measure(ctx)
}

// leave takes back that a call waits.
func (r *rounds[T]) leave(w *round[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.waiting--; w.waiting > 0 {
		return
	}
	w.cancel()
	if r.next == w {
		r.next = nil
	}
}
