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
// exits of the others need. So a release begins when no exit is being settled and none was reported
// for a moment, and only some young releases run at once.
//
// Everything here is bounded, so that no ID waits long for another one: a release begins at most
// patience later, and it ceases to count among the young ones after the same time. A release that
// somebody waits for, and one that was tried before, begin at once.
type pacer struct {
	quiet    time.Duration // without a report, before a release begins
	patience time.Duration
	young    chan struct{} // one for each young release

	mu       sync.Mutex
	settling int // settles in flight
	last     time.Time
}

func newPacer() *pacer {
	return &pacer{
		quiet:    50 * time.Millisecond,
		patience: time.Second,
		young:    make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
	}
}

// reported notes that the end of a process was reported.
func (p *pacer) reported() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// settle notes a settle in flight, until done is called.
func (p *pacer) settle() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settling++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settling--
		p.last = time.Now()
	}
}

// wait is how long it is quiet enough for a release at the earliest; 0: now.
func (p *pacer) wait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settling > 0 {
		return p.quiet
	}
	return p.quiet - time.Since(p.last)
}

// admit waits until the release of a unit may begin: for its turn, at most for the patience of the
// pacer, and not at all once hurried is closed. done must be called when the release is over.
func (p *pacer) admit(ctx context.Context, hurried <-chan struct{}) (done func()) {
	nothing := func() {}
	late := time.NewTimer(p.patience)
	defer late.Stop()
	for wait := p.wait(); wait > 0; wait = p.wait() {
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
