// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("event feed is closed")

// Config is the feed's bounds; zero values take the defaults given.
type Config struct {
	Queue int           // events waiting per subscriber before they are folded; 1024
	Keep  time.Duration // how far back the end of a subscription is told again; 10 s
}

// Stats is for metrics.
type Stats struct {
	Subscribers, Queued int
	Published, Folded   uint64
	Dropped             uint64 // DELETED events beyond the bound: the relist finds those
}

// Feed is the fan-out. Its methods may be called from any goroutine.
type Feed struct {
	cfg Config
	mu  struct {
		sync.Mutex
		stamps map[string]int64 // last stamp by pod
		subs   map[*Subscription]struct{}
		// backlog collects while nobody is subscribed.
		backlog *queue
		stats   Stats
		closed  bool
	}
}

// New makes a feed without subscribers.
func New(cfg Config) *Feed {
	if cfg.Queue <= 0 {
		cfg.Queue = 1024
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 10 * time.Second
	}
	f := &Feed{cfg: cfg}
	f.mu.stamps = map[string]int64{}
	f.mu.subs = map[*Subscription]struct{}{}
	f.mu.backlog = newQueue(cfg.Queue)
	return f
}

// Stamp is the next stamp for an event of a pod: now in nanoseconds, or just above the pod's last one.
// Take it before the snapshot that goes with the event, and publish in the order of the stamps.
func (f *Feed) Stamp(podID string, now time.Time) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := max(now.UnixNano(), f.mu.stamps[podID]+1)
	f.mu.stamps[podID] = s
	return s
}

// Forget frees what is kept of a pod that is gone.
func (f *Feed) Forget(podID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mu.stamps, podID)
}

// Publish hands an event to every subscriber, or keeps it for the next one. The event must not
// be changed afterwards. It never blocks.
func (f *Feed) Publish(ev *runtimeapi.ContainerEventResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.stats.Published++
	if len(f.mu.subs) == 0 {
		f.count(f.mu.backlog.put(ev))
		return
	}
	for s := range f.mu.subs {
		f.count(s.queue.put(ev))
		s.wake()
	}
}

func (f *Feed) count(folded, dropped int) {
	f.mu.stats.Folded += uint64(folded)   //nolint:gosec // never negative
	f.mu.stats.Dropped += uint64(dropped) //nolint:gosec // never negative
}

// Subscribe begins a subscription, with what nobody heard yet.
func (f *Feed) Subscribe() *Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &Subscription{feed: f, queue: f.mu.backlog, more: make(chan struct{}, 1)}
	f.mu.backlog = newQueue(f.cfg.Queue)
	if f.mu.closed {
		s.closed = true
	} else {
		f.mu.subs[s] = struct{}{}
	}
	s.wake()
	return s
}

// Close ends all subscriptions.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.closed = true
	for s := range f.mu.subs {
		s.closed = true
		s.wake()
	}
	clear(f.mu.subs)
}

// Stats is the feed's state now.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.mu.stats
	st.Subscribers, st.Queued = len(f.mu.subs), f.mu.backlog.len()
	for s := range f.mu.subs {
		st.Queued += s.queue.len()
	}
	return st
}

// Subscription is one subscriber's view. One goroutine at a time may call Next.
type Subscription struct {
	feed *Feed
	more chan struct{} // one slot

	// guarded by feed.mu
	queue  *queue
	sent   []sent // handed out lately
	closed bool
}

type sent struct {
	ev *runtimeapi.ContainerEventResponse
	at time.Time
}

func (s *Subscription) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Next returns the next event. It blocks until there is one, ctx ends (its error) or the
// subscription is closed ([ErrClosed]).
func (s *Subscription) Next(ctx context.Context) (*runtimeapi.ContainerEventResponse, error) {
	for {
		ev, closed := s.take(time.Now())
		if ev != nil {
			return ev, nil
		}
		if closed {
			return nil, ErrClosed
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.more:
		}
	}
}

func (s *Subscription) take(now time.Time) (*runtimeapi.ContainerEventResponse, bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	ev := s.queue.pop()
	if ev == nil {
		return nil, s.closed
	}
	old := 0
	for old < len(s.sent) && (now.Sub(s.sent[old].at) > s.feed.cfg.Keep || len(s.sent)-old >= s.feed.cfg.Queue) {
		old++
	}
	s.sent = append(s.sent[old:], sent{ev, now})
	return ev, false
}

// Close ends the subscription. What it did not take, and what it took lately, is kept for the next
// subscriber unless another one is there and has it.
func (s *Subscription) Close() {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.mu.subs[s]; !ok {
		return
	}
	delete(f.mu.subs, s)
	s.closed = true
	s.wake()
	if len(f.mu.subs) > 0 {
		return
	}
	now := time.Now()
	for _, old := range s.sent {
		if now.Sub(old.at) <= f.cfg.Keep {
			f.count(f.mu.backlog.put(old.ev))
		}
	}
	for ev := s.queue.pop(); ev != nil; ev = s.queue.pop() {
		f.count(f.mu.backlog.put(ev))
	}
}
