// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"time"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
)

var errFull = errors.New("no space left on device")

// diskState tells whether commits succeed, and since when. It is guarded by the world's lock.
type diskState struct {
	full    bool
	stalled int       // commits that are stalled now
	since   time.Time // when commits last began to succeed again
}

func (d *diskState) works() bool { return !d.full && d.stalled == 0 }

// settleBound is the time within which a berth records an exit that it knows of, on a disk that
// works: its bounds on measuring the code and on draining the log, and one attempt more.
const settleBound = 5 * time.Second

// commitsFail is called when a commit fails, before commits begin to fail, and when the berth dies:
// facts that it had the time to record until then stay known. The world must be locked.
func (w *World) commitsFail() {
	if w.disk.works() && w.life != nil {
		for _, p := range w.inits {
			for _, n := range []*notice{&p.notified, &p.kept} {
				if n.life != w.life {
					continue
				}
				since := n.at
				if w.disk.since.After(since) {
					since = w.disk.since
				}
				n.recorded = n.recorded || time.Since(since) > settleBound
			}
		}
	}
	w.disk.since = time.Now()
}

// DiskFull makes commits fail, or succeed again.
func (w *World) DiskFull(full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if full == w.disk.full {
		return
	}
	if full {
		w.note("*** the disk is full", "")
	} else {
		w.note("*** the disk has room", "")
	}
	w.commitsFail()
	w.disk.full = full
}

// disk puts the world's faults in front of a real database.
type disk struct {
	w     *World
	l     *Life
	store pod.Store
}

func (d disk) Commit(changes ...state.Change) error {
	id := ""
	if len(changes) > 0 {
		id = changes[0].ID()
	}
	return d.w.do(context.Background(), d.l, "commit", id, func() error {
		if d.w.disk.full {
			return errFull
		}
		return d.store.Commit(changes...)
	})
}
