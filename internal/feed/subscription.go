// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Subscription is one subscriber's place in a feed. Next is for one goroutine at a time; Close may be called
// from any. Who called Subscribe calls Close.
type Subscription struct {
	feed *Feed
	wake chan struct{} // holds one token when there may be something new to see

	// Guarded by feed.mu:
	closed  bool
	queue   queue
	waiting bool      // in Next, and nothing to take since level
	level   time.Time // when it last had nothing left to take; now, while waiting
	joined  time.Time
}

// Subscribe opens a subscription. It begins with what the feed remembers, then goes on with all that
// is published from here on. On a closed feed its Next returns ErrClosed.
func (f *Feed) Subscribe() *Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	s := &Subscription{
		feed:   f,
		wake:   make(chan struct{}, 1),
		joined: now,
		queue:  queue{limit: f.cfg.Queue, most: max(f.cfg.Queue, f.cfg.Backlog)},
	}
	f.joinLocked(s, now)
	return s
}

// Next returns the next event, which is shared and must not be changed. It blocks until there is one,
// ctx ends (its cause is wrapped), or the feed or the subscription is closed (ErrClosed). Once ctx ended
// it hands out nothing, so that no event goes to a client that is known to be gone.
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

// take returns the event at the head of the queue; neither event nor error says to wait.
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
		f.heardLocked(s, it, now)
		return it.ev, nil
	}
	if f.closed {
		return nil, ErrClosed
	}
	s.waiting = true
	return nil, nil
}

// giveUp ends a wait that brought nothing.
func (s *Subscription) giveUp() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.stopWaitingLocked(time.Now())
}

// stopWaitingLocked notes that s was level until now.
func (s *Subscription) stopWaitingLocked(now time.Time) {
	if s.waiting {
		s.waiting, s.level = false, now
	}
}

// Close ends the subscription; a Next that waits returns ErrClosed. What was not taken stays with the
// feed for whoever subscribes next. It may be called more than once.
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
	s.wakeUp()
}

// wakeUp makes Next look again. The token stays until it does, so that none is lost between its
// look and its wait.
func (s *Subscription) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
