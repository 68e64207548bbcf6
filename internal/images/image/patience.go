// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// patience ends a pull that gets nowhere: hardly a byte has come for a while and nothing is
// unpacked, or a layer is unpacked for too long. No byte needs to come while layers are unpacked:
// that takes minutes for a large one, and it may be the last. A registry that sends a byte now and
// then would otherwise hold a pull, and its callers, for ever. A pull whose layers wait until those
// of other images are unpacked gets nowhere either, and is not ended for that: others decide it.
type patience struct {
	forByte, forLayer time.Duration
	cancel            context.CancelCauseFunc

	mu     sync.Mutex
	timer  *time.Timer
	until  time.Time
	layers int   // being unpacked
	queued int   // layers that wait to be unpacked
	least  int64 // bytes that have to come within forByte; one at least
	came   int64 // since the timer was set
}

// newPatience begins to wait. rate is how many bytes have to come in a minute.
func newPatience(forByte, forLayer time.Duration, rate int64, cancel context.CancelCauseFunc) *patience {
	p := &patience{
		forByte:  forByte,
		forLayer: forLayer,
		cancel:   cancel,
		least:    max(1, int64(float64(rate)*forByte.Minutes())),
	}
	p.until = time.Now().Add(forByte)
	p.timer = time.AfterFunc(forByte, p.over)
	return p
}

// bytes counts n bytes that have come. It begins to wait anew once enough have, and when the
// registry answers a request, which is 0 bytes: there are only so many requests, apart from those
// for the rest of a blob, whose answers are not reported.
func (p *patience) bytes(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.came += int64(n); p.layers+p.queued == 0 && (n == 0 || p.came >= p.least) {
		p.came = 0
		p.wait(p.forByte)
	}
}

// change notes that so many more layers are being unpacked, and wait to be. Each change begins to
// wait anew.
func (p *patience) change(layers, queued int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came = 0
	p.layers += layers
	p.queued += queued
	switch {
	case p.layers > 0:
		p.wait(p.forLayer)
	case p.queued > 0:
		p.timer.Stop()
	default:
		p.wait(p.forByte)
	}
}

// wait begins to wait anew. Called with mu.
func (p *patience) wait(d time.Duration) {
	p.until = time.Now().Add(d)
	p.timer.Reset(d)
}

func (p *patience) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.layers == 0 && p.queued > 0, time.Now().Before(p.until):
		// The timer was stopped or set anew when it had run off already.
	case p.layers == 0 && p.came > 0:
		p.cancel(stalled("only %d bytes came from the registry in %s, fewer than the %d of a kibibyte a minute", p.came, p.forByte, p.least))
	case p.layers == 0:
		p.cancel(stalled("no byte came from the registry for %s", p.forByte))
	default:
		p.cancel(stalled("no layer was unpacked within %s", p.forLayer))
	}
}

// end ends the wait, since the pull is over.
func (p *patience) end() { p.timer.Stop() }

func stalled(format string, args ...any) error { return stalledError{fmt.Errorf(format, args...)} }
