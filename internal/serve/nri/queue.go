// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"iter"
	"sync"

	"berth/internal/base/retry"
)

// queue is a bounded queue that never blocks its producers.
type queue[T any] struct {
	limit int
	more  retry.Wake // one value: there may be something
	mu    struct {
		sync.Mutex
		items []T
	}
}

func newQueue[T any](limit int) *queue[T] {
	return &queue[T]{limit: limit, more: retry.NewWake()}
}

// put adds an item. If there are too many, the oldest is dropped, and put returns true.
func (q *queue[T]) put(item T) (dropped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if dropped = len(q.mu.items) >= q.limit; dropped {
		q.mu.items = q.mu.items[1:]
	}
	q.mu.items = append(q.mu.items, item)
	q.more.Up()
	return dropped
}

func (q *queue[T]) take() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.items) == 0 {
		q.mu.items = nil // so that its memory is free
		return item, false
	}
	item = q.mu.items[0]
	var none T
	q.mu.items[0] = none
	q.mu.items = q.mu.items[1:]
	return item, true
}

// all takes items, and waits for more of them, until ctx ends.
func (q *queue[T]) all(ctx context.Context) iter.Seq[T] {
	return func(yield func(T) bool) {
		for ctx.Err() == nil {
			if item, ok := q.take(); ok {
				if !yield(item) {
					return
				}
				continue
			}
			select {
			case <-ctx.Done():
			case <-q.more:
			}
		}
	}
}
