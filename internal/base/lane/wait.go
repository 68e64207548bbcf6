// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"sync"
	"time"
)

// Event is the one-time result of a lane, for which others wait. The zero value is an event that
// has not happened yet. An Event must not be copied.
//
// Wait for an event with a [Waiter], because the lane may be in a long back-off.
type Event struct {
	mu       sync.Mutex
	happened bool
	ch       chan struct{} // closed once it has happened; nil until it is needed
}

// Happen marks the event as having happened. Calling it again is a no-op.
func (e *Event) Happen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.happened {
		return
	}
	e.happened = true
	if e.ch != nil {
		close(e.ch)
	}
}

// Happened reports whether the event has happened.
func (e *Event) Happened() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.happened
}

// Done returns a channel that is closed once the event has happened. w is a waiter of the lane that
// brings the event about.
func (e *Event) Done(w *Waiter) <-chan struct{} {
	if w == nil {
		panic("lane: wait for an event without a waiter")
	}
	return e.Notice()
}

// Notice returns the channel of Done for a caller that reacts to the event and does not wait for
// it: no request depends on when it is closed.
func (e *Event) Notice() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ch == nil {
		e.ch = make(chan struct{})
		if e.happened {
			close(e.ch)
		}
	}
	return e.ch
}

// Waiter represents a caller that waits for a lane. As long as there is one, the lane does not back
// off for longer than Config.Awaited.
type Waiter struct {
	end  func()
	idle func(ctx context.Context) error
}

// Wait lets the lane of key retry now, and again soon whenever that fails, until End of the waiter
// is called. Call it before checking the event.
func (r *Runner[K, T]) Wait(key K) *Waiter {
	r.mu.Lock()
	r.mu.m.Wait(time.Now(), key)
	r.mu.Unlock()
	r.look()
	return &Waiter{
		end: sync.OnceFunc(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.mu.m.Unwait(key)
		}),
		idle: func(ctx context.Context) error { return r.idle(ctx, key) },
	}
}

// End ends the wait of w. It must be called; calling it again is a no-op.
func (w *Waiter) End() { w.end() }

// Idle waits until the lane has nothing to do. It returns ctx's error when ctx ends first.
func (w *Waiter) Idle(ctx context.Context) error { return w.idle(ctx) }

// Awaited reports whether the lane of key has a waiter.
func (r *Runner[K, T]) Awaited(key K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.m.Awaited(key)
}

// idle waits until the lane of key has nothing to do. It returns ctx's error when ctx ends first.
func (r *Runner[K, T]) idle(ctx context.Context, key K) error {
	r.mu.Lock()
	if !r.mu.m.Busy(key) {
		r.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	r.mu.idle[key] = append(r.mu.idle[key], ch)
	r.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		r.unwait(key, ch)
		return ctx.Err()
	}
}

func (r *Runner[K, T]) unwait(key K, ch chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.mu.idle[key]
	for i, c := range list {
		if c == ch {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(r.mu.idle, key)
		return
	}
	r.mu.idle[key] = list
}
