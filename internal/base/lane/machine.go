// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"time"
)

// ErrStale is returned by [Machine.Done] for an attempt that is not in flight.
var ErrStale = errors.New("no such attempt is in flight")

// Key identifies a lane. String is the name that people see: it must differ for keys that differ.
type Key interface {
	comparable
	String() string
}

// Backoff is the wait after a failed attempt: Min after the first failure, then Factor times as
// long after each further one, but at most Max. Each wait is prolonged by up to Jitter of itself.
type Backoff struct {
	Min    time.Duration
	Max    time.Duration
	Factor float64
	Jitter float64 // 0.1: up to a tenth longer
}

// Config is the settings of a machine. A field that is zero takes the default named beside it.
type Config struct {
	Backoff     Backoff       // 1 s, 5 min, factor 2, no jitter
	Deadline    time.Duration // of the first attempt on an item; 10 s
	MaxDeadline time.Duration // to which the deadline grows; 5 min, and never less than Deadline
	MaxQueue    int           // items that wait in one lane; 64
	// Awaited is the longest back-off, jitter included, of a lane with a waiter; 1 s.
	Awaited time.Duration
	Rand    func() float64 // in [0,1), for the jitter; nil: a Machine has none, a Runner its own
}

func (c *Config) defaults() {
	c.Backoff.Min = cmp.Or(c.Backoff.Min, time.Second)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, 5*time.Minute)
	c.Backoff.Factor = max(1, cmp.Or(c.Backoff.Factor, 2))
	c.Deadline = cmp.Or(c.Deadline, 10*time.Second)
	c.MaxDeadline = max(c.Deadline, cmp.Or(c.MaxDeadline, 5*time.Minute))
	c.MaxQueue = cmp.Or(c.MaxQueue, 64)
	c.Awaited = cmp.Or(c.Awaited, time.Second)
}

// Attempt is one try at the head of a lane.
type Attempt[K Key, T comparable] struct {
	Key      K
	Item     T
	N        int       // 1 for the first attempt on this item
	Deadline time.Time // when its context ends
	seq      uint64
}

// Result is how an attempt ended.
type Result struct {
	kind   resultKind
	err    error
	within time.Duration // of retryWithin
}

type resultKind uint8

const (
	done resultKind = iota
	retry
	retryWithin
)

// Done returns the result of an attempt after which nothing is left to do for the item.
func Done() Result { return Result{} }

// Retry returns the result of an attempt that failed. The item is tried again after the back-off.
func Retry(err error) Result { return Result{kind: retry, err: err} }

// RetryWithin returns the result of a failed attempt at something that must not wait in a long
// back-off. The back-off counts and grows as after [Retry], but this wait is never longer than
// limit, jitter included, and the attempt's length does not prolong the deadline of the next.
func RetryWithin(err error, limit time.Duration) Result {
	return Result{kind: retryWithin, err: err, within: limit}
}

// Err returns the error of an attempt that failed, else nil.
func (r Result) Err() error { return r.err }

// String names the result for metrics: done or retry.
func (r Result) String() string { return [...]string{"done", "retry", "retry"}[r.kind] }

// phase is the state of a lane.
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

type laneState[K Key, T comparable] struct {
	key      K
	phase    phase
	items    []T // items[0] is the head: in flight, backing off, or next
	tries    int // attempts on the head
	fails    int // since the back-off last began from Min
	overruns int // attempts on the head that failed at or past their deadline
	poked    bool
	lastErr  error
	since    time.Time // when the lane came to its phase
	wake     time.Time // when the back-off ends
	deadline time.Time // of the attempt in flight
	seq      uint64    // of the attempt in flight
	order    uint64    // rises each time the lane is queued; breaks ties between sleepers
	index    int       // in the heap of sleepers, -1 outside
}

// Machine holds the lanes of all keys. It is not safe for concurrent use.
type Machine[K Key, T comparable] struct {
	cfg   Config
	lanes map[K]*laneState[K, T]
	// ready is a FIFO of exactly the lanes that are queued: only Ready takes a lane out of that
	// phase, and it takes the first.
	ready    []*laneState[K, T]
	sleepers sleepers[K, T]
	seq      uint64
	// waiters is how many wait for the lane of a key, whether it is idle or not.
	waiters map[K]int
}

// NewMachine makes a machine without lanes.
func NewMachine[K Key, T comparable](cfg Config) *Machine[K, T] {
	cfg.defaults()
	return &Machine[K, T]{cfg: cfg, lanes: map[K]*laneState[K, T]{}, waiters: map[K]int{}}
}

// move moves a lane from one phase to another. It is the only way to do so.
func (m *Machine[K, T]) move(l *laneState[K, T], now time.Time, to phase) {
	if l.index >= 0 {
		heap.Remove(&m.sleepers, l.index)
	}
	l.phase, l.since = to, now
	switch to {
	case idle:
		delete(m.lanes, l.key)
	case queued:
		m.seq++
		l.order = m.seq
		m.ready = append(m.ready, l)
	case inFlight:
		m.seq++
		l.seq, l.deadline, l.poked = m.seq, now.Add(m.span(l.overruns)), false
		l.tries++
	case backingOff:
		heap.Push(&m.sleepers, l)
	}
}

// Offer puts an item at the end of the lane of key, unless it equals the last waiting one, which
// then stands for both. It reports false, and drops the item, when the lane is full.
func (m *Machine[K, T]) Offer(now time.Time, key K, item T) bool {
	l, ok := m.lanes[key]
	if !ok {
		l = &laneState[K, T]{key: key, index: -1, items: []T{item}}
		m.lanes[key] = l
		m.move(l, now, queued)
		return true
	}
	// The item in flight does not stand for the offered item: its attempt may already have passed
	// the step that the offer is about. The head of a lane that backs off does: its next attempt
	// begins later.
	first := 0
	if l.phase == inFlight {
		first = 1
	}
	if last := len(l.items) - 1; last >= first && l.items[last] == item {
		return true
	}
	if len(l.items)-first >= m.cfg.MaxQueue {
		return false
	}
	l.items = append(l.items, item)
	return true
}

// Poke ends the wait of a lane that backs off and lets its back-off begin from Min again. While an
// attempt is in flight the poke is remembered: should the attempt fail, the next follows at once.
func (m *Machine[K, T]) Poke(now time.Time, key K) {
	l, ok := m.lanes[key]
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

// Wait notes that a caller waits for the lane of key, until Unwait is called: the lane is poked,
// and from now on it never backs off for longer than Config.Awaited. Its back-off counts and grows
// all the same, for the time without waiters.
func (m *Machine[K, T]) Wait(now time.Time, key K) {
	m.waiters[key]++
	m.Poke(now, key)
}

// Unwait takes back one call of Wait. A wait that has begun does not become longer.
func (m *Machine[K, T]) Unwait(key K) {
	if m.waiters[key]--; m.waiters[key] <= 0 {
		delete(m.waiters, key)
	}
}

// Awaited reports whether the lane of key has a waiter.
func (m *Machine[K, T]) Awaited(key K) bool { return m.waiters[key] > 0 }

// Ready returns the next attempt whose time has come, first come first served.
func (m *Machine[K, T]) Ready(now time.Time) (Attempt[K, T], bool) {
	for len(m.sleepers) > 0 && !m.sleepers[0].wake.After(now) {
		m.move(m.sleepers[0], now, queued)
	}
	if len(m.ready) == 0 {
		return Attempt[K, T]{}, false
	}
	l := m.ready[0]
	m.ready[0] = nil
	m.ready = m.ready[1:]
	m.move(l, now, inFlight)
	return Attempt[K, T]{
		Key:      l.key,
		Item:     l.items[0],
		N:        l.tries,
		Deadline: l.deadline,
		seq:      l.seq,
	}, true
}

// Done ends an attempt. It returns [ErrStale], and changes nothing, when the attempt is not in
// flight.
func (m *Machine[K, T]) Done(now time.Time, a Attempt[K, T], r Result) error {
	l, ok := m.lanes[a.Key]
	if !ok || l.phase != inFlight || l.seq != a.seq {
		return ErrStale
	}
	l.lastErr = r.err
	if r.kind == done {
		var none T
		l.items[0] = none
		l.items = l.items[1:]
		l.tries, l.fails, l.overruns = 0, 0, 0
		if len(l.items) == 0 {
			m.move(l, now, idle)
			return nil
		}
		m.move(l, now, queued)
		return nil
	}
	if r.kind == retry && !now.Before(l.deadline) {
		l.overruns++
	}
	if l.poked {
		l.fails = 0
		m.move(l, now, queued)
		return nil
	}
	wait := m.backoff(l.fails)
	if r.kind == retryWithin {
		wait = min(wait, max(r.within, 0))
	}
	if m.Awaited(l.key) {
		wait = min(wait, m.cfg.Awaited)
	}
	l.fails++
	l.wake = now.Add(wait)
	m.move(l, now, backingOff)
	return nil
}

// backoff returns the wait after a failure that had fails before it.
func (m *Machine[K, T]) backoff(fails int) time.Duration {
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

// span returns how long an attempt may take after overruns attempts on the same head that took too
// long.
func (m *Machine[K, T]) span(overruns int) time.Duration {
	d := m.cfg.Deadline
	for range overruns {
		if d >= m.cfg.MaxDeadline/2 {
			return m.cfg.MaxDeadline
		}
		d *= 2
	}
	return d
}

// NextWake returns when Ready will return an attempt if nothing else happens. It reports false when
// it never will.
func (m *Machine[K, T]) NextWake() (time.Time, bool) {
	if len(m.ready) > 0 {
		return m.ready[0].since, true
	}
	if len(m.sleepers) > 0 {
		return m.sleepers[0].wake, true
	}
	return time.Time{}, false
}

// Len counts the lanes that are not idle.
func (m *Machine[K, T]) Len() int { return len(m.lanes) }

// Busy reports whether the lane of key is not idle.
func (m *Machine[K, T]) Busy(key K) bool {
	_, ok := m.lanes[key]
	return ok
}

// Lane describes a lane that is not idle.
type Lane struct {
	ID      string    `json:"id"`    // the key's String
	State   string    `json:"state"` // queued, in flight, overdue, backing off
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"` // the end of the back-off, or the attempt's deadline
	Waiting int       `json:"waiting"`        // items, the head included
	Tries   int       `json:"tries"`          // attempts on the head
	Err     string    `json:"error,omitempty"`
	Head    any       `json:"head"`
}

// Snapshot lists the lanes that are not idle, sorted by ID.
func (m *Machine[K, T]) Snapshot(now time.Time) []Lane {
	list := make([]Lane, 0, len(m.lanes))
	for _, l := range m.lanes {
		d := Lane{
			ID:      l.key.String(),
			State:   l.phase.String(),
			Since:   l.since,
			Waiting: len(l.items),
			Tries:   l.tries,
			Head:    l.items[0],
		}
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

// sleepers is a heap of the lanes that back off, the soonest first.
type sleepers[K Key, T comparable] []*laneState[K, T]

func (s sleepers[K, T]) Len() int { return len(s) }
func (s sleepers[K, T]) Less(i, j int) bool {
	if c := s[i].wake.Compare(s[j].wake); c != 0 {
		return c < 0
	}
	return s[i].order < s[j].order
}
func (s sleepers[K, T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s *sleepers[K, T]) Push(x any) {
	l := x.(*laneState[K, T])
	l.index = len(*s)
	*s = append(*s, l)
}
func (s *sleepers[K, T]) Pop() any {
	old := *s
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	l.index = -1
	return l
}
