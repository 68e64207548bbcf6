// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"time"

	"berth/internal/base/exit"
)

// End describes the end of a process, and when its witnesses learn of it.
type End struct {
	Code uint32
	// OOM is set if the OOM killer has fired, because of Limit.
	OOM   bool
	Limit exit.Limit
	// Notice is how much later the kernel notifies a berth that watches the process, and Reap how much
	// later the shim learns of it; 0 for no delay.
	Notice, Reap time.Duration
	// Blind is set if the kernel does not report the code of this process.
	Blind bool
	// FirstThread is as in [Process].
	FirstThread *uint32
}

// EndAs ends the process of id in a way of its own. It reports false when there is none that runs.
func (w *World) EndAs(id string, e End) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.Ended || !p.Started {
		return false
	}
	p.Blind, p.FirstThread, p.notice, p.reap = e.Blind, e.FirstThread, e.Notice, e.Reap
	if e.OOM {
		w.oomAt(p, e.Limit)
	}
	w.end(p, e.Code)
	return true
}

// OOMAt makes the OOM killer fire in the cgroup of id, because a limit was reached. It reports
// false if no process runs.
func (w *World) OOMAt(id string, limit exit.Limit) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.Ended {
		return false
	}
	w.oomAt(p, limit)
	return true
}

func (w *World) oomAt(p *Process, limit exit.Limit) {
	before := p.hits
	w.oom(p)
	switch p.hits = before; limit {
	case exit.LimitContainer:
		p.hits[0]++
	case exit.LimitPod, exit.LimitAbove:
		p.hits[1]++
	case exit.LimitNode, exit.LimitUnknown:
	}
}

// Runs reports whether the process of id was started and has not ended.
func (w *World) Runs(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	return p != nil && p.Started && !p.Ended
}

// ShimOf is the ID by which [World.KillShim] knows the shim of id; "" when it has none that lives.
func (w *World) ShimOf(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.ctrd.shimOf(id)
	if s == nil {
		s = w.ctrd.shims[id]
	}
	if s == nil || s.dead {
		return ""
	}
	return s.id
}

// Claim makes containerd's event stream report that the process of id has ended with a code, which
// may be false.
func (w *World) Claim(id string, code uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.inits[id]; p != nil {
		w.note(fmt.Sprintf("*** containerd claims that it has ended with %d", code), id)
		w.ctrd.publish(w, id, p.pid, code, w.wall())
	}
}

// Reboot ends the kernel, after berth and containerd have ended: no process, shim or task is left,
// and nothing that is kept in memory. The codes of processes that ended with it cannot be known.
func (w *World) Reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != nil || !w.ctrd.down {
		panic("berth or containerd runs on in a reboot")
	}
	w.note("*** the machine reboots", "")
	w.boots++
	w.clock.reboot()
	for _, p := range w.procs {
		if !p.Ended {
			p.Ended, p.At, p.Stamp, p.Away, p.Lost = true, time.Now(), w.wall(), true, true
		}
		p.reaped = true
	}
	for _, t := range w.ctrd.tasks {
		t.proc.Lost = true
		if !t.seen {
			close(t.done)
		}
	}
	clear(w.procs)
	clear(w.ctrd.tasks)
	clear(w.ctrd.shims)
	clear(w.netns)
	clear(w.pins)
	clear(w.stdio)
	clear(w.kept)
}
