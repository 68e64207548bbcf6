// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
)

// Subscription is one subscriber's place in a feed. Next is for one goroutine at a time; Close may
// be called from any. The caller of Subscribe closes it.
type Subscription struct {
	feed *Feed
	wake retry.Wake // holds one token when there may be something new

	// Guarded by feed.mu:
	closed  bool
	queue   queue
	waiting bool      // in Next, which has found nothing to take
	level   time.Time // when it last had nothing left to take; while waiting, that is now
	joined  time.Time
}

// Subscribe opens a subscription. It begins with a replay of the events that the feed remembers,
// without DELETED ones, and goes on with every event published from now on. On a closed feed its
// Next returns ErrClosed.
func (f *Feed) Subscribe() *Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	s := &Subscription{
		feed:   f,
		wake:   retry.NewWake(),
		joined: now,
		queue:  queue{limit: f.cfg.Queue, most: max(f.cfg.Queue, f.cfg.Backlog)},
	}
	f.joinLocked(s, now)
	return s
}

// Next returns the next event, which is shared and must not be changed. It blocks until there is
// one, ctx ends (its cause is wrapped), or the feed or the subscription is closed (ErrClosed). Once
// ctx has ended it returns no event, so that none goes to a client that is gone.
func (s *Subscription) Next(ctx context.Context) (*runtimeapi.ContainerEventResponse, error) {
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait for container events: %w", context.Cause(ctx))
		}
		if ev, err := s.take(); ev != nil || err != nil {
			return ev, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			s.giveUp()
		}
	}
}

// take returns the event at the head of the queue. It returns neither an event nor an error when
// there is nothing to take, and the subscriber waits from then on.
func (s *Subscription) take() (*runtimeapi.ContainerEventResponse, error) {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	s.stopWaitingLocked(now)
	if s.closed {
		return nil, ErrClosed
	}
	if it, ok := s.queue.pop(); ok {
		f.handedLocked(s, it, now)
		return it.ev, nil
	}
	if f.closed {
		return nil, ErrClosed
	}
	s.waiting = true
	return nil, nil
}

// giveUp ends a wait in which no event came.
func (s *Subscription) giveUp() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.stopWaitingLocked(time.Now())
}

// stopWaitingLocked notes that s had nothing left to take until now.
func (s *Subscription) stopWaitingLocked(now time.Time) {
	if s.waiting {
		s.waiting, s.level = false, now
	}
}

// Close ends the subscription; a Next that waits returns ErrClosed. Events that were not taken stay
// in the feed's memory for the next subscriber. Close may be called more than once.
func (s *Subscription) Close() {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.closed {
		return
	}
	f.leaveLocked(s, time.Now())
	s.closed = true
	s.queue = queue{}
	s.wake.Up()
}
