// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

// minWindow is the shortest time over which a rate is computed. Over a shorter one, the steps in
// which the kernel accounts CPU time would show.
const minWindow = time.Second

// sample is the CPU time that was used until an instant, in nanoseconds.
type sample struct {
	at   time.Time
	used uint64
}

// nanoCores returns the rate between two samples: nanoseconds of CPU time per second. There is none
// if b is not after a, or if the counter went back, because then the cgroup is another one.
func nanoCores(a, b sample) (uint64, bool) {
	elapsed := b.at.Sub(a.at)
	if a.at.IsZero() || elapsed <= 0 || b.used < a.used {
		return 0, false
	}
	high, low := bits.Mul64(b.used-a.used, uint64(time.Second))
	if high >= uint64(elapsed) {
		return math.MaxUint64, true
	}
	rate, _ := bits.Div64(high, low, uint64(elapsed))
	return rate, true
}

// window is the two samples of one cgroup that its rate comes from.
type window struct{ prev, last sample }

// add takes a sample and returns the rate up to it. A sample that comes within minWindow of the
// last one is compared with the one before that, and not kept: two callers that ask at the same
// time get the same rate.
func (w *window) add(s sample) (uint64, bool) {
	if s.used < w.last.used { // the cgroup is another one
		*w = window{}
	}
	if w.last.at.IsZero() || s.at.Sub(w.last.at) >= minWindow {
		w.prev, w.last = w.last, s
	}
	return nanoCores(w.prev, s)
}

// rates holds the windows of all cgroups, by the ID of the container or sandbox.
type rates struct {
	mu      sync.Mutex
	windows map[string]*window
}

// add takes a sample of id and returns the rate up to it.
func (r *rates) add(id string, s sample) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.windows[id]
	if w == nil {
		w = &window{}
		r.windows[id] = w
	}
	return w.add(s)
}

// stale reports whether id has no sample since an instant.
func (r *rates) stale(id string, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.windows[id]
	return w == nil || w.last.at.Before(since)
}

// keep forgets all but the given IDs.
func (r *rates) keep(ids map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.windows {
		if !ids[id] {
			delete(r.windows, id)
		}
	}
}
