// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// patience ends a pull that gets nowhere: no byte has come for a while and nothing is unpacked, or
// a layer is unpacked for too long. No byte needs to come while layers are unpacked: that takes
// minutes for a large one, and it may be the last.
type patience struct {
	forByte, forLayer time.Duration
	cancel            context.CancelCauseFunc

	mu     sync.Mutex
	timer  *time.Timer
	layers int // being unpacked
}

func newPatience(forByte, forLayer time.Duration, cancel context.CancelCauseFunc) *patience {
	p := &patience{forByte: forByte, forLayer: forLayer, cancel: cancel}
	p.timer = time.AfterFunc(forByte, p.over)
	return p
}

// bytes begins anew to wait for bytes.
func (p *patience) bytes() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.layers == 0 {
		p.timer.Reset(p.forByte)
	}
}

// unpacking begins to wait for a layer, until done is called.
func (p *patience) unpacking() (done func()) {
	p.change(1)
	return func() { p.change(-1) }
}

func (p *patience) change(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.layers += by; p.layers == 0 {
		p.timer.Reset(p.forByte)
	} else {
		p.timer.Reset(p.forLayer)
	}
}

func (p *patience) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.layers == 0 {
		p.cancel(fmt.Errorf("no byte came from the registry for %s", p.forByte))
	} else {
		p.cancel(fmt.Errorf("no layer was unpacked within %s", p.forLayer))
	}
}

// end is called when the pull is over.
func (p *patience) end() { p.timer.Stop() }
