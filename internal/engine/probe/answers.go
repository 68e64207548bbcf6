// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/internal/base/retry"
)

// answers keeps the answers to one question about a number of keys.
type answers[A any] struct {
	timeout time.Duration
	ask     func(ctx context.Context, key string) (A, error)

	mu       sync.Mutex
	kept     map[string]A
	fresh    map[string]bool // an answer is kept since the last outdate
	asking   map[string]*asking[A]
	outdated chan struct{} // closed by the next outdate
}

// asking is a question that is in flight. The other fields hold once done is closed.
type asking[A any] struct {
	done   chan struct{}
	answer A
	err    error
	cut    bool // the caller did not wait for the answer
}

func newAnswers[A any](timeout time.Duration, ask func(ctx context.Context, key string) (A, error)) *answers[A] {
	return &answers[A]{
		timeout:  timeout,
		ask:      ask,
		kept:     map[string]A{},
		fresh:    map[string]bool{},
		asking:   map[string]*asking[A]{},
		outdated: make(chan struct{}),
	}
}

// outdate has all questions asked again, because another one answers them now. Until then known
// returns the old answers. The answer to a question in flight is not kept.
func (a *answers[A]) outdate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.fresh)
	clear(a.asking)
	close(a.outdated)
	a.outdated = make(chan struct{})
}

// next returns a channel that the next outdate closes.
func (a *answers[A]) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outdated
}

// known returns the answer about a key if there is one. It does not wait.
func (a *answers[A]) known(key string) (answer A, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer, ok = a.kept[key]
	return answer, ok
}

// all returns the answers that there are.
func (a *answers[A]) all() iter.Seq[A] {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Values(maps.Clone(a.kept))
}

// of returns the answer about a key, and asks if there is none yet. Concurrent callers share the
// question, and ask it again only if the first one has stopped waiting.
func (a *answers[A]) of(ctx context.Context, key string) (A, error) {
	for {
		a.mu.Lock()
		if answer := a.kept[key]; a.fresh[key] {
			a.mu.Unlock()
			return answer, nil
		}
		q, others := a.asking[key]
		if !others {
			q = &asking[A]{done: make(chan struct{})}
			a.asking[key] = q
		}
		a.mu.Unlock()
		if !others {
			a.put(ctx, key, q)
			return q.answer, q.err
		}
		select {
		case <-q.done:
			if !q.cut {
				return q.answer, q.err
			}
		case <-ctx.Done():
			var none A
			return none, fmt.Errorf("wait for an answer about %s: %w", key, ctx.Err())
		}
	}
}

// put asks a question, and keeps the answer. Those who share the question go on also if it panics.
func (a *answers[A]) put(ctx context.Context, key string, q *asking[A]) {
	q.cut = true
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.asking[key] == q {
			delete(a.asking, key)
		}
		close(q.done)
	}()
	within, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	q.answer, q.err = a.ask(within, key)
	q.cut = ctx.Err() != nil
	if q.err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.asking[key] == q {
			a.kept[key], a.fresh[key] = q.answer, true
		}
	}
}

// check asks about a key unless there is an answer.
func (a *answers[A]) check(ctx context.Context, key string) error {
	_, err := a.of(ctx, key)
	return err
}

// The wait before a question that got no answer is asked again.
const (
	firstAsk   = time.Second
	slowestAsk = 5 * time.Minute
)

// run asks about each handler until all have answered, as untilAnswered does, and again after each
// outdate, until ctx ends.
func (a *answers[A]) run(ctx context.Context, handlers []string, ready func(context.Context) error, report func(handler string, err error)) {
	for ctx.Err() == nil {
		next := a.next()
		untilAnswered(ctx, handlers, ready, a.check, report)
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// untilAnswered asks about each handler until ask has returned nil for all of them, or until ctx
// ends. Before it asks it calls ready, which waits until the question can be asked, and may be nil.
// The handlers without an answer are asked about again after a wait that doubles up to slowestAsk.
// report is called with the first error of each handler.
func untilAnswered(ctx context.Context, handlers []string, ready func(context.Context) error, ask func(ctx context.Context, handler string) error, report func(handler string, err error)) {
	reported := map[string]bool{}
	pending := slices.Clone(handlers)
	for range retry.Doubling(ctx.Done(), firstAsk, slowestAsk) {
		if ready != nil {
			_ = ready(ctx) // it fails when ctx ends
		}
		if ctx.Err() != nil {
			return
		}
		pending = slices.DeleteFunc(pending, func(handler string) bool {
			err := ask(ctx, handler)
			if err != nil && ctx.Err() == nil && !reported[handler] {
				reported[handler] = true
				report(handler, err)
			}
			return err == nil
		})
		if len(pending) == 0 {
			return
		}
	}
}
