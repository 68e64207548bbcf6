// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/retry"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// oomWatcher notices OOM kills of containers that live, so that the end of one is not explained by
// a kill long before. Kills that a container survives are in its timeline, its status and a metric.
type oomWatcher struct {
	units  *registry
	reader *oomReader
	ops    *operations
	obs    Observer
}

// noted takes IDs whose containers may have had an OOM kill. It does not block.
func (w *oomWatcher) noted(ids []string) {
	for _, id := range ids {
		if u, ok := w.units.get(id); ok && !u.isSandbox() {
			w.look(u)
		}
	}
}

// arm asks for notices about a container of an earlier berth, and looks at once if it had an OOM
// kill meanwhile.
func (w *oomWatcher) arm(u *unit) {
	if w.reader.arm(u) {
		w.look(u)
	}
}

// lookBelow looks at the counter of u if the kernel does not notify of all kills that it counts:
// with cgroup v1 not of those in groups that a container has made below its own. Such a group can
// be gone soon, and its counter with it.
func (w *oomWatcher) lookBelow(u *unit) {
	if dir := u.process().Cgroup; !u.isSandbox() && dir != "" && w.reader.cgroups.Unnoticed(dir) {
		w.look(u)
	}
}

// look starts to read the counter of u, now and for a moment: the kernel notifies of a kill before
// it counts it (cgroup v1), and whether the container survives it is seen later. One goroutine does
// so for each container at most.
func (w *oomWatcher) look(u *unit) {
	e := &u.oom
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.looking {
		e.again = true
		return
	}
	e.looking = w.ops.spawn(func() {
		for w.lookOnce(u) {
		}
	})
}

// lookOnce reads the counter for as long as a kill may explain an end, and records the kills that
// the container survived. It reports whether to look again.
func (w *oomWatcher) lookOnce(u *unit) bool {
	// Kills seen before the last wait, which is longer than oomNear, explain no end any more.
	var seen oomCounter
	for _, wait := range []time.Duration{oomNear / 10, oomNear + oomNear/100, 0} {
		if u.evidence.hasEnded() || w.ops.stopping() {
			break // the settle of the end reads the counter
		}
		w.reader.sample(u)
		if wait == 0 {
			w.survived(u, seen)
			break
		}
		seen = u.oom.reading()
		retry.Sleep(w.ops.life.Done(), wait)
	}
	e := &u.oom
	e.mu.Lock()
	defer e.mu.Unlock()
	e.looking, e.again = e.again && !u.evidence.hasEnded() && !w.ops.stopping(), false
	return e.looking
}

// survived records the kills of c after which u goes on. It is called when the last of them can
// explain no later end; later counts are looked at again. A kill after which the process is gone
// may be the end's, however late that is noticed.
func (w *oomWatcher) survived(u *unit, c oomCounter) {
	e := &u.oom
	a, _ := w.reader.kernel.Look(u.id)
	e.mu.Lock()
	if e.counter.kills > e.counter.survived && a == pidfd.Gone {
		e.counter.last.late = true
	}
	e.again = e.again || e.counter.kills > c.kills
	grown := c.kills - min(c.kills, e.counter.survived)
	e.mu.Unlock()
	if grown == 0 || a != pidfd.Alive {
		return
	}
	recorded := false
	err := u.change(func(st *state.Status) bool {
		recorded = !st.Phase.Ended() && !u.evidence.hasEnded()
		if recorded {
			st.OOMKills, st.OOMKilledAt = c.kills, c.last.to
		}
		return recorded
	})
	if err != nil || !recorded {
		return // kills not recorded now are recorded at the end, or with the next kill
	}
	e.mu.Lock()
	e.counter.survived = c.kills
	e.mu.Unlock()
	w.obs.Note(u.id, event.OOMKillSurvived{Kills: grown, Limit: c.last.limit})
}

// survivedText returns the message of a status with the number of OOM kills that a running
// container survived; "" for none.
func survivedText(st *state.Status, c *clock.Clock) string {
	if st.OOMKills == 0 {
		return ""
	}
	kills := "OOM kills"
	if st.OOMKills == 1 {
		kills = "OOM kill"
	}
	return fmt.Sprintf("%d %s survived, the last at %s", st.OOMKills, kills, c.Wall(st.OOMKilledAt).Format(time.RFC3339))
}
