// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrClosed is returned by Next when the feed or the subscription is closed and nothing is left to
// take.
var ErrClosed = fmt.Errorf("the feed of container events is closed, subscribe again once berth is back: %w", errdefs.ErrUnavailable)

// Config bounds a feed. A zero value stands for the default.
type Config struct {
	// Queue is how many events wait for one subscriber before they are coalesced. The default is 1024.
	Queue int
	// Backlog is how many containers have their newest event remembered for later subscribers. The
	// default is 4096.
	Backlog int
	// Keep is how long an event is remembered after it was handed out. The default is 5 minutes,
	// the interval at which a kubelet with evented PLEG relists. A negative value means not at all.
	Keep time.Duration
}

func (c *Config) defaults() {
	c.Queue = max(1, cmp.Or(c.Queue, 1024))
	c.Backlog = max(1, cmp.Or(c.Backlog, 4096))
	c.Keep = max(0, cmp.Or(c.Keep, 5*time.Minute))
}

// Stats describes a feed at one instant. Totals count from New on.
type Stats struct {
	Subscribers int // now
	Queued      int // events waiting in all queues
	Longest     int // events waiting in the longest queue
	Backlog     int // containers whose newest event is remembered
	// Published counts each event once, however many subscribers there are.
	Published uint64
	// Coalesced counts events that a subscriber did not get because a newer one of the same
	// container took their place in its queue.
	Coalesced uint64
	// Dropped counts events that gave way in a full queue, or in the memory while there was no
	// subscriber, with nothing in their place.
	Dropped uint64
	// Restamped counts events whose stamp did not rise within their pod: the publisher does not
	// keep Stamp, snapshot and Publish together.
	Restamped uint64
}

// Feed publishes events to its subscribers. Its methods may be called from any goroutine.
type Feed struct {
	cfg Config

	mu        sync.Mutex // guards everything below, and every Subscription
	closed    bool
	clock     int64            // the highest stamp ever issued or published, ns since the epoch
	pods      map[string]int64 // the last stamp published of each pod that is not forgotten
	seq       uint64           // of the last event published
	memory    *latest
	subs      map[*Subscription]struct{}
	debts     []debt    // oldest first; at most grain+2
	idleSince time.Time // when the last subscriber left
	published uint64
	coalesced uint64
	dropped   uint64
	restamped uint64
}

// debt describes events that may have to be replayed: all that were handed out from Keep before
// level on. It is owed to the subscribers that left at an instant, or shortly after, and lapses
// Keep later.
type debt struct {
	at    time.Time // excludes the time without any subscriber
	level time.Time // the earliest of those subscribers' levels
}

// grain is the part of Keep (one in so many) to which times are kept, so that there are few debts.
const grain = 16

// New makes a feed without subscribers. It remembers events from the start.
func New(cfg Config) *Feed {
	cfg.defaults()
	return &Feed{
		cfg:    cfg,
		pods:   map[string]int64{},
		memory: newLatest(),
		subs:   map[*Subscription]struct{}{},
	}
}

// Stamp returns the created_at, in nanoseconds since the epoch, of the next event of a pod: now, or
// just above the last stamp if the clock did not move on. Call it before taking the snapshot that
// the event carries, so that the stamp is not later than the snapshot. No two calls return the same
// stamp, even for different pods: see "Stamps" in the package's documentation.
func (f *Feed) Stamp(_ string, now time.Time) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = max(f.clock+1, now.UnixNano())
	return f.clock
}

// Instant returns the timestamp, in nanoseconds since the epoch, of a PodSandboxStatusResponse
// whose snapshot is taken after the call. It is not below any stamp returned so far, so that the
// response is not taken for older than an event that the snapshot already includes. It does not use
// up a stamp.
func (f *Feed) Instant(now time.Time) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = max(f.clock, now.UnixNano())
	return f.clock
}

// Publish queues ev for every subscriber and remembers it. It does not block. From here on ev
// belongs to the feed and is shared: do not change it. The events of one pod are delivered in the
// order of the calls. A created_at that is not above the pod's last is raised to just above it, and
// counted, because the order comes first; that does not happen to a publisher that uses Stamp as it
// is documented. A closed feed ignores events.
func (f *Feed) Publish(ev *runtimeapi.ContainerEventResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.orderLocked(ev)
	now := time.Now()
	f.seq++
	f.published++
	it := item{ev: ev, seq: f.seq}

	f.rememberLocked(it)
	for s := range f.subs {
		coalesced, dropped := s.queue.push(it)
		f.coalesced += uint64(coalesced)
		f.dropped += uint64(dropped)
		s.stopWaitingLocked(now)
		s.wake.Up()
	}
	f.ageLocked(now, false)
}

// orderLocked makes ev's stamp rise within its pod.
func (f *Feed) orderLocked(ev *runtimeapi.ContainerEventResponse) {
	pod := podOf(ev)
	if last := f.pods[pod]; ev.CreatedAt <= last { // a stamp of 0 does not rise either
		ev.CreatedAt = last + 1
		f.restamped++
	}
	f.pods[pod] = ev.CreatedAt
	f.clock = max(f.clock, ev.CreatedAt)
}

// podOf returns the sandbox that ev is about. An event of the sandbox itself names it as its
// container, too.
func podOf(ev *runtimeapi.ContainerEventResponse) string {
	return cmp.Or(ev.GetPodSandboxStatus().GetId(), ev.GetContainerId())
}

// Forget drops the stamps of a pod. Call it after the pod's last Publish. Events of the pod that
// still wait are delivered. It does nothing for an unknown pod.
func (f *Feed) Forget(podID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, podID)
}

// Close ends the feed: subscribers take the rest of their queues, and then get ErrClosed. It may be
// called more than once.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.memory = newLatest()
	f.debts = nil
	clear(f.pods)
	for s := range f.subs {
		s.wake.Up()
	}
}

// Stats describes the feed now. It costs one step per subscriber.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Stats{
		Subscribers: len(f.subs),
		Backlog:     f.memory.len(),
		Published:   f.published,
		Coalesced:   f.coalesced,
		Dropped:     f.dropped,
		Restamped:   f.restamped,
	}
	for s := range f.subs {
		n := s.queue.len()
		st.Queued += n
		st.Longest = max(st.Longest, n)
	}
	return st
}
