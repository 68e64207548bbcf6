// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"time"
)

// ErrStale is returned by [Machine.Done] for an attempt that is not the one in flight.
var ErrStale = errors.New("no such attempt is in flight")

// Backoff is the wait after a failed attempt: Min, then Factor times as long after each
// further failure, at most Max, each prolonged by up to Jitter of itself.
type Backoff struct {
	Min, Max time.Duration
	Factor   float64
	Jitter   float64 // 0.1: up to a tenth longer
}

// Config is a machine's settings. Zero values take the defaults given.
type Config[T any] struct {
	Backoff  Backoff       // 1 s, 5 min, 2, no jitter
	Deadline time.Duration // of one attempt; 10 s
	// Coalesce folds an offered item into one that waits and was not attempted since. ok is false
	// when both have to be kept, in order. nil: never fold.
	Coalesce func(waiting, offered T) (merged T, ok bool)
	MaxQueue int            // items waiting in one lane; 64
	Rand     func() float64 // in [0,1), for jitter; nil: none
}

func (c *Config[T]) defaults() {
	c.Backoff.Min = cmp.Or(c.Backoff.Min, time.Second)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, 5*time.Minute)
	c.Backoff.Factor = max(1, cmp.Or(c.Backoff.Factor, 2))
	c.Deadline = cmp.Or(c.Deadline, 10*time.Second)
	c.MaxQueue = cmp.Or(c.MaxQueue, 64)
}

// Attempt is one try at the head of a lane.
type Attempt[T any] struct {
	ID       string
	Item     T
	N        int       // 1 for the first try of this item
	Deadline time.Time // when its context ends
	seq      uint64
}

// Result is how an attempt ended.
type Result struct {
	err   error
	after time.Duration
	kind  resultKind
}

type resultKind uint8

const (
	done resultKind = iota
	retry
	retryAfter
)

// Done: the item is dealt with.
func Done() Result { return Result{} }

// Retry: the item is tried again after the lane's back-off.
func Retry(err error) Result { return Result{kind: retry, err: err} }

// RetryAfter: it is not time yet; the item is tried again after d, without counting as a failure.
func RetryAfter(d time.Duration) Result { return Result{kind: retryAfter, after: d} }

// Err is the error of a Retry.
func (r Result) Err() error { return r.err }

// String names the result for metrics.
func (r Result) String() string { return [...]string{"done", "retry", "later"}[r.kind] }

// phase is where a lane stands.
//
//	       Offer              Ready               Done
//	idle ────────▶ queued ──────────▶ in flight ──────────▶ idle, or queued for the next item
//	                 ▲                    │ Retry
//	                 │ time, or Poke      ▼
//	                 └─────────────── backing off
type phase uint8

const (
	idle phase = iota
	queued
	inFlight
	backingOff
)

func (p phase) String() string { return [...]string{"idle", "queued", "in flight", "backing off"}[p] }

type laneState[T any] struct {
	id       string
	phase    phase
	items    []T // items[0] is the head: in flight, backing off, or next
	tries    int // of the head
	fails    int // in a row, for the back-off
	poked    bool
	lastErr  error
	since    time.Time // of the phase
	wake     time.Time // backing off until
	deadline time.Time // of the attempt in flight
	seq      uint64    // of the attempt in flight
	order    uint64    // among the queued
	index    int       // in the heap of sleepers, -1 outside
}

// Machine holds the lanes of all IDs. It is not safe for concurrent use.
type Machine[T any] struct {
	cfg      Config[T]
	lanes    map[string]*laneState[T]
	ready    []*laneState[T] // FIFO; entries that are not queued any more are skipped
	sleepers sleepers[T]
	seq      uint64
}

// NewMachine makes a machine without lanes.
func NewMachine[T any](cfg Config[T]) *Machine[T] {
	cfg.defaults()
	return &Machine[T]{cfg: cfg, lanes: map[string]*laneState[T]{}}
}

// move is the only way from one phase to another.
func (m *Machine[T]) move(l *laneState[T], now time.Time, to phase) {
	if l.index >= 0 {
		heap.Remove(&m.sleepers, l.index)
	}
	l.phase, l.since = to, now
	switch to {
	case idle:
		delete(m.lanes, l.id)
	case queued:
		m.seq++
		l.order = m.seq
		m.ready = append(m.ready, l)
	case inFlight:
		m.seq++
		l.seq, l.deadline, l.poked = m.seq, now.Add(m.cfg.Deadline), false
		l.tries++
	case backingOff:
		heap.Push(&m.sleepers, l)
	}
}

// Offer puts an item at the end of the lane of id. It reports false when the lane is full.
func (m *Machine[T]) Offer(now time.Time, id string, item T) bool {
	l, ok := m.lanes[id]
	if !ok {
		l = &laneState[T]{id: id, index: -1, items: []T{item}}
		m.lanes[id] = l
		m.move(l, now, queued)
		return true
	}
	// What is in flight is past folding: what arrives now is news to it. The head of a lane that
	// backs off is not: the next attempt sees what was folded in.
	first := 0
	if l.phase == inFlight {
		first = 1
	}
	if last := len(l.items) - 1; last >= first && m.cfg.Coalesce != nil {
		if merged, ok := m.cfg.Coalesce(l.items[last], item); ok {
			l.items[last] = merged
			return true
		}
	}
	if len(l.items)-first >= m.cfg.MaxQueue {
		return false
	}
	l.items = append(l.items, item)
	return true
}

// Poke makes a lane that backs off ready now, and lets its back-off begin anew. While an attempt is in
// flight it is remembered: if that fails, the next follows at once.
func (m *Machine[T]) Poke(now time.Time, id string) {
	l, ok := m.lanes[id]
	if !ok {
		return
	}
	switch l.phase {
	case backingOff:
		if l.wake.After(now) {
			l.fails = 0
			m.move(l, now, queued)
		}
	case inFlight:
		l.poked = true
	}
}

// Ready hands out the next attempt whose time has come, first come first served.
func (m *Machine[T]) Ready(now time.Time) (Attempt[T], bool) {
	for len(m.sleepers) > 0 && !m.sleepers[0].wake.After(now) {
		m.move(m.sleepers[0], now, queued)
	}
	if len(m.ready) == 0 {
		return Attempt[T]{}, false
	}
	l := m.ready[0]
	m.ready[0] = nil
	m.ready = m.ready[1:]
	m.move(l, now, inFlight)
	return Attempt[T]{ID: l.id, Item: l.items[0], N: l.tries, Deadline: l.deadline, seq: l.seq}, true
}

// Done ends an attempt. [ErrStale] when it is not the one in flight: nothing changes then.
func (m *Machine[T]) Done(now time.Time, a Attempt[T], r Result) error {
	l, ok := m.lanes[a.ID]
	if !ok || l.phase != inFlight || l.seq != a.seq {
		return ErrStale
	}
	l.lastErr = r.err
	if r.kind == done {
		var none T
		l.items[0] = none
		l.items = l.items[1:]
		l.tries, l.fails = 0, 0
		if len(l.items) == 0 {
			m.move(l, now, idle)
			return nil
		}
		m.move(l, now, queued)
		return nil
	}
	if l.poked {
		l.fails = 0
		m.move(l, now, queued)
		return nil
	}
	wait := r.after
	if r.kind == retry {
		wait = m.backoff(l.fails)
		l.fails++
	}
	l.wake = now.Add(wait)
	m.move(l, now, backingOff)
	return nil
}

func (m *Machine[T]) backoff(fails int) time.Duration {
	b := m.cfg.Backoff
	d := float64(b.Min)
	for range fails {
		if d *= b.Factor; d >= float64(b.Max) {
			break
		}
	}
	d = min(d, float64(b.Max))
	if m.cfg.Rand != nil {
		d += d * b.Jitter * m.cfg.Rand()
	}
	return time.Duration(d)
}

// NextWake is when Ready will have something, or an attempt in flight becomes overdue, if
// nothing else happens. False: never.
func (m *Machine[T]) NextWake() (time.Time, bool) {
	if len(m.ready) > 0 {
		return m.ready[0].since, true
	}
	if len(m.sleepers) > 0 {
		return m.sleepers[0].wake, true
	}
	return time.Time{}, false
}

// Len is the number of lanes that are not idle.
func (m *Machine[T]) Len() int { return len(m.lanes) }

// Busy reports whether the lane of id is not idle.
func (m *Machine[T]) Busy(id string) bool {
	_, ok := m.lanes[id]
	return ok
}

// Lane describes a lane that is not idle.
type Lane struct {
	ID      string    `json:"id"`
	State   string    `json:"state"` // queued, in flight, overdue, backing off
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"` // backing off until, or the attempt's deadline
	Waiting int       `json:"waiting"`        // items, the head included
	Tries   int       `json:"tries"`          // of the head
	Err     string    `json:"error,omitempty"`
	Head    any       `json:"head"`
}

// Snapshot lists the lanes that are not idle, by ID.
func (m *Machine[T]) Snapshot(now time.Time) []Lane {
	list := make([]Lane, 0, len(m.lanes))
	for _, l := range m.lanes {
		d := Lane{ID: l.id, State: l.phase.String(), Since: l.since, Waiting: len(l.items), Tries: l.tries, Head: l.items[0]}
		switch {
		case l.phase == inFlight:
			d.Until = l.deadline
			if now.After(l.deadline) {
				d.State = "overdue"
			}
		case l.phase == backingOff:
			d.Until = l.wake
		}
		if l.lastErr != nil {
			d.Err = l.lastErr.Error()
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Lane) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// sleepers is a heap of the lanes that back off, soonest first.
type sleepers[T any] []*laneState[T]

func (s sleepers[T]) Len() int { return len(s) }
func (s sleepers[T]) Less(i, j int) bool {
	if c := s[i].wake.Compare(s[j].wake); c != 0 {
		return c < 0
	}
	return s[i].order < s[j].order
}
func (s sleepers[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s *sleepers[T]) Push(x any) {
	l := x.(*laneState[T])
	l.index = len(*s)
	*s = append(*s, l)
}
func (s *sleepers[T]) Pop() any {
	old := *s
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	l.index = -1
	return l
}
