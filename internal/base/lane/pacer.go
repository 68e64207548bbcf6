// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrTurn ends an attempt to release that was over before its turn came. The next attempt has the
// turn that this one had.
var ErrTurn = errors.New("the release waits for those of containers that ended earlier")

// Pacer keeps releases out of the way of settles. A settle makes an exit visible, and a release
// gives back its holds. When many containers end at once, the releases of the first (deletions by
// runc, commits of containerd) take the processors and the disk that the exits of the others need.
// So a release begins when no other exit is being settled and none was reported for a moment, or
// once it has waited for that for its patience. Then it waits for its turn: only some young
// releases run at once, and the one that has waited longest is the next. The release after an exit
// that comes alone begins at once.
//
// No ID waits without a bound for another one: a release is young for a tenth of a second at most,
// so that some of those that wait begin in each such span, even if others hang. A release that a
// caller waits for, and one that was tried before, begin at once.
type Pacer struct {
	quiet    time.Duration // without a report, before a release begins
	patience time.Duration
	youth    time.Duration // how long a release is young at most
	most     int           // young releases at a time

	mu       sync.Mutex
	settling map[string]int // settles in flight, by ID of the unit
	latest   struct {       // report, or settle that ended
		of    string // ID of the unit
		at    time.Time
		alone bool // there was no report about another unit for a moment before
	}
	young   int              // releases that began a moment ago
	number  uint64           // of the last turn
	waiting map[string]*turn // by ID of the unit
}

// turn is the place of a release among those that wait.
type turn struct {
	number uint64
	since  time.Time
	ready  bool          // the release waits for nothing but the others
	begin  chan struct{} // closed when it may begin, as one of the young ones
}

// NewPacer makes a pacer for that many processors. Its other bounds are fixed: they are about
// disks, and are the same on every node.
func NewPacer(processors int) *Pacer {
	return &Pacer{
		quiet:    50 * time.Millisecond,
		patience: time.Second,
		youth:    100 * time.Millisecond,
		most:     max(4, 2*processors),
		settling: map[string]int{},
		waiting:  map[string]*turn{},
	}
}

// Reported notes that the end of a unit's process was reported.
func (p *Pacer) Reported(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(id)
}

// Settle notes that a unit's exit is being settled, until done is called.
func (p *Pacer) Settle(id string) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settling[id]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.settling[id]--; p.settling[id] == 0 {
			delete(p.settling, id)
		}
		p.note(id)
	}
}

// note notes a report, or the end of a settle. p.mu is held.
func (p *Pacer) note(id string) {
	if id != p.latest.of {
		p.latest.of, p.latest.alone = id, time.Since(p.latest.at) >= p.quiet
	}
	p.latest.at = time.Now()
}

// wait returns how long it is until the release of a unit may begin at the earliest; 0: now.
func (p *Pacer) wait(id string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.settling); n > 1 || n == 1 && p.settling[id] == 0 {
		return p.quiet
	}
	if p.latest.of == id && p.latest.alone {
		return 0
	}
	return p.quiet - time.Since(p.latest.at)
}

// Waits reports whether the release of a unit waits for its turn, because an attempt that was over
// before that came.
func (p *Pacer) Waits(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[id] != nil
}

// Admit waits until the release of a unit may begin, and not at all once hurried is closed. done
// must be called when the release is over. The error is [ErrTurn] if ctx ended before.
func (p *Pacer) Admit(ctx context.Context, id string, hurried <-chan struct{}) (done func(), err error) {
	t := p.enqueue(id)
	if err := p.awaitQuiet(ctx, id, t, hurried); err != nil {
		return nil, err
	}
	p.makeReady(t)
	select {
	case <-t.begin:
	case <-hurried:
	case <-ctx.Done():
	}
	if young, err := p.conclude(id, t, hurried); !young {
		return func() {}, err
	}
	leave := sync.OnceFunc(p.leave)
	old := time.AfterFunc(p.youth, leave)
	return func() { old.Stop(); leave() }, nil
}

// awaitQuiet waits until the release of a unit is not in the way of other exits, for the patience
// of the pacer at most.
func (p *Pacer) awaitQuiet(ctx context.Context, id string, t *turn, hurried <-chan struct{}) error {
	for {
		wait := min(p.wait(id), p.patience-time.Since(t.since))
		if wait <= 0 {
			return nil
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
			continue
		case <-hurried:
			again.Stop()
			return nil
		case <-ctx.Done():
			again.Stop()
			return ErrTurn
		}
	}
}

// enqueue returns the turn of a release, which it keeps until it begins.
func (p *Pacer) enqueue(id string) *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.waiting[id]
	if t == nil {
		p.number++
		t = &turn{number: p.number, since: time.Now(), begin: make(chan struct{})}
		p.waiting[id] = t
	}
	return t
}

func (p *Pacer) makeReady(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.ready = true
	p.grant()
}

// conclude ends the wait of a release for its turn, and reports whether it came. Otherwise the
// release begins without one, if it has a waiter, or keeps its turn.
func (p *Pacer) conclude(id string, t *turn, hurried <-chan struct{}) (young bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[id] != t {
		return true, nil
	}
	select {
	case <-hurried:
		delete(p.waiting, id)
		return false, nil
	default:
		t.ready = false
		return false, ErrTurn
	}
}

// Forget takes the release of a unit that is gone out of those that wait.
func (p *Pacer) Forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// leave notes that a young release is over, or is not young any more.
func (p *Pacer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.young--
	p.grant()
}

// grant lets releases begin as long as there is room, the oldest first. p.mu is held.
func (p *Pacer) grant() {
	for p.young < p.most {
		var oldest string
		for id, t := range p.waiting {
			if t.ready && (oldest == "" || t.number < p.waiting[oldest].number) {
				oldest = id
			}
		}
		if oldest == "" {
			return
		}
		p.young++
		close(p.waiting[oldest].begin)
		delete(p.waiting, oldest)
	}
}
