// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// pacer keeps releases out of the way of settles. When many containers end at once, the releases of
// the first (deletions by runc, commits of containerd) take the processors and the disk that the
// exits of the others need. So a release begins when no other exit is being settled and none was
// reported for a moment, and only some young releases run at once. What an exit that comes alone
// left is released at once.
//
// Everything here is bounded, so that no ID waits long for another one: a release begins at most
// patience later, and it ceases to count among the young ones after the same time. A release that
// somebody waits for, and one that was tried before, begin at once.
type pacer struct {
	quiet    time.Duration // without a report, before a release begins
	patience time.Duration
	young    chan struct{} // one for each young release

	mu       sync.Mutex
	settling map[string]int // settles in flight, by ID of the unit
	latest   struct {       // report, or settle that ended
		of    string // ID of the unit
		at    time.Time
		alone bool // there was no report about another unit for a moment before
	}
}

func newPacer() *pacer {
	return &pacer{
		quiet:    50 * time.Millisecond,
		patience: time.Second,
		young:    make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
		settling: map[string]int{},
	}
}

// reported notes that the end of a unit's process was reported.
func (p *pacer) reported(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(id)
}

// settle notes that a unit's exit is being settled, until done is called.
func (p *pacer) settle(id string) (done func()) {
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

// note has p.mu.
func (p *pacer) note(id string) {
	if id != p.latest.of {
		p.latest.of, p.latest.alone = id, time.Since(p.latest.at) >= p.quiet
	}
	p.latest.at = time.Now()
}

// wait is how long it is until the release of a unit may begin at the earliest; 0: now.
func (p *pacer) wait(id string) time.Duration {
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

// admit waits until the release of a unit may begin: for its turn, at most for the patience of the
// pacer, and not at all once hurried is closed. done must be called when the release is over.
func (p *pacer) admit(ctx context.Context, id string, hurried <-chan struct{}) (done func()) {
	nothing := func() {}
	late := time.NewTimer(p.patience)
	defer late.Stop()
	for wait := p.wait(id); wait > 0; wait = p.wait(id) {
		again := time.NewTimer(wait)
		select {
		case <-again.C:
			continue
		case <-late.C:
		case <-hurried:
		case <-ctx.Done():
		}
		again.Stop()
		return nothing
	}
	select {
	case <-hurried:
		return nothing
	default:
	}
	select {
	case p.young <- struct{}{}:
	case <-late.C:
		return nothing
	case <-hurried:
		return nothing
	case <-ctx.Done():
		return nothing
	}
	leave := sync.OnceFunc(func() { <-p.young })
	old := time.AfterFunc(p.patience, leave)
	return func() { old.Stop(); leave() }
}
