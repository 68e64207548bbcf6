// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/base/ops"
)

// errGone ends work when the last caller has gone.
var errGone = errors.New("everybody who asked has gone")

// flights are pieces of work in flight by key. A call for one that is in flight joins it. It
// outlives each caller, and ends when the last of them has gone. The zero value is ready.
type flights[K comparable, V any] struct {
	mu     sync.Mutex
	by     map[K]*flight[V]
	ended  bool
	flying sync.WaitGroup
}

type flight[V any] struct {
	waiting []string // the callers, as they want to be known; guarded by flights.mu
	cancel  context.CancelCauseFunc
	done    chan struct{}
	value   V // once done is closed, as err
	err     error
}

// join waits for the work under key, which run does, or for ctx. who is the caller's name in the
// list of waiters. The context of run is cancelled with a cause; cancel cancels it with another
// one.
func (f *flights[K, V]) join(ctx context.Context, key K, who string, run func(ctx context.Context, cancel context.CancelCauseFunc) (V, error)) (V, error) {
	var none V
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return none, errdefs.ErrUnavailable
	}
	w, ok := f.by[key]
	if !ok {
		if f.by == nil {
			f.by = map[K]*flight[V]{}
		}
		runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		w = &flight[V]{cancel: cancel, done: make(chan struct{})}
		f.by[key] = w
		f.flying.Go(func() {
			defer cancel(nil)
			w.value, w.err = run(runCtx, cancel)
			f.land(key, w)
			close(w.done)
		})
	}
	w.waiting = append(w.waiting, who)
	f.mu.Unlock()
	if ok {
		_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the same work, which another call has begun"})
		defer op.End()
	}
	select {
	case <-w.done:
		return w.value, w.err
	case <-ctx.Done():
		f.leave(key, w, who)
		return none, ctx.Err()
	}
}

// land forgets work that is done: a call from now on begins anew.
func (f *flights[K, V]) land(key K, w *flight[V]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[key] == w {
		delete(f.by, key)
	}
}

func (f *flights[K, V]) leave(key K, w *flight[V], who string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := slices.Index(w.waiting, who); n >= 0 {
		w.waiting = slices.Delete(w.waiting, n, n+1)
	}
	if len(w.waiting) > 0 {
		return
	}
	w.cancel(errGone)
	if f.by[key] == w {
		delete(f.by, key)
	}
}

// who lists the callers that wait for the work under key.
func (f *flights[K, V]) who(key K) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w, ok := f.by[key]; ok {
		return slices.Clone(w.waiting)
	}
	return nil
}

// end cancels the work in flight, refuses more, and waits.
func (f *flights[K, V]) end() {
	f.mu.Lock()
	f.ended = true
	for _, w := range f.by {
		w.cancel(errdefs.ErrUnavailable)
	}
	f.mu.Unlock()
	f.flying.Wait()
}
