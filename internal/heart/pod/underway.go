// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"sync"
)

// underway is the creation or the start of a unit that is in flight.
type underway struct {
	mu    sync.Mutex
	start attempt                 // of a container; the record has more of it
	end   context.CancelCauseFunc // ends the call in flight; nil if there is none
}

// attempt returns the start of the container, as it is now.
func (w *underway) attempt() attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.start
}

// move moves the start to another stage, if that follows the one it is at.
func (w *underway) move(to stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = w.start.move(to)
}

// setSpare sets whether there may be a view that was made to renew the writable layer.
func (w *underway) setSpare(may bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start.spare = may
}

// interruptible returns a context that [underway.interrupt] ends. done must be called when the
// operation is over.
func (w *underway) interruptible(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = cancel
	return ctx, func() {
		w.mu.Lock()
		w.end = nil
		w.mu.Unlock()
		cancel(nil)
	}
}

// interrupt ends the creation or the start that is in flight, if there is one.
func (w *underway) interrupt(why error) {
	w.mu.Lock()
	cancel := w.end
	w.mu.Unlock()
	if cancel != nil {
		cancel(why)
	}
}
