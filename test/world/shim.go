// SPDX-License-Identifier: Apache-2.0

package world

import (
	"maps"
	"slices"
	"time"
)

// shim is the shim of a pod, or of a group of pods without a process. The world's lock guards it.
type shim struct {
	id   string
	vm   bool // its processes die with it
	dead bool
	// stays is set if it serves sandboxes without a process: it does not end with the last of its
	// tasks. pods are those sandboxes, and group is the group in their records; "" for a single one.
	stays bool
	pods  map[string]bool
	group string
	// behind is how many ends it has still to publish: its Wait is answered before that.
	behind int
	// heldUpUntil: it learns of the ends of processes late until then.
	heldUpUntil time.Time
}

// reap is the reaction of a shim to the end of its process: it takes the status, answers its
// waiters, and publishes the end, at once or in a moment.
func (c *containerdState) reap(w *World, p *Process) {
	t := c.tasks[p.ID]
	p.reaped = true
	if t == nil || t.proc != p || t.shim.dead || t.seen {
		return
	}
	t.seen = true
	close(t.done)
	if w.Gap == 0 {
		c.tell(w, t)
		return
	}
	t.shim.behind++
	time.AfterFunc(w.Gap, func() {
		w.turns.take("publish " + t.id)
		w.mu.Lock()
		defer w.mu.Unlock()
		t.shim.behind--
		c.tell(w, t)
	})
}

// tell publishes the end of a task, unless the shim has died meanwhile.
func (c *containerdState) tell(w *World, t *task) {
	if t.told = true; t.shim.dead {
		return
	}
	if w.lostEvents > 0 {
		w.lostEvents--
		return
	}
	c.publish(w, t.id, t.proc.pid, t.proc.Code, t.proc.Stamp)
}

// early notes that a task was deleted before its shim had published its end. If more ends are
// waiting for that than the shim's reaper has room for, it hands on the next one a second later.
func (s *shim) early(w *World) {
	w.early++
	if s.behind <= w.ShimQueue {
		return
	}
	if now := time.Now(); s.heldUpUntil.Before(now) {
		s.heldUpUntil = now
	}
	s.heldUpUntil = s.heldUpUntil.Add(time.Second)
}

// heldUp is how much later than otherwise the shim learns of the next end.
func (s *shim) heldUp() time.Duration { return max(0, time.Until(s.heldUpUntil)) }

// Early counts the tasks that were deleted before their shim had published their end: meanwhile a
// real shim learns of no other end.
func (w *World) Early() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.early
}

// KillShim ends the shim of a pod as SIGKILL does. The processes of all pods that it serves live
// on, and containerd, which cleans up after the shim, claims that they ended with 137.
func (w *World) KillShim(pod string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.ctrd.shims[pod]
	if s == nil || s.dead {
		return false
	}
	w.note("*** shim dies", pod)
	w.loseShim(s)
	if !w.ctrd.down {
		w.ctrd.cleanUp(w, s)
	}
	return true
}

// Unrestored reports whether the shim of an ID died before it was asked to restore its process.
func (w *World) Unrestored(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unrestored[id]
}

// loseShim ends a shim. The world must be locked.
func (w *World) loseShim(s *shim) {
	s.dead = true
	for _, t := range sorted(w.ctrd.tasks) {
		if t.shim == s {
			w.loseTask(t)
		}
	}
}

// loseTask is the effect of a shim's end on a task. The world must be locked.
func (w *World) loseTask(t *task) {
	t.proc.Lost = true
	w.unrestored[t.id] = w.unrestored[t.id] || t.unborn()
	if t.shim.vm && !t.proc.Ended {
		w.end(t.proc, 137)
	}
	if t.proc.Ended {
		t.proc.reaped = true
	}
}

// cleanUp is containerd's reaction to the death of a shim. It ends processes that were not started.
// Running ones live on, which is the harder case for berth.
func (c *containerdState) cleanUp(w *World, s *shim) {
	for _, t := range sorted(c.tasks) {
		if t.shim == s {
			c.cleanUpTask(w, t)
		}
	}
	if s.stays {
		c.publish(w, s.id, 0, 137, w.wall()) // of the shim's own bundle
	}
	maps.DeleteFunc(c.shims, func(_ string, o *shim) bool { return o == s })
}

func (c *containerdState) cleanUpTask(w *World, t *task) {
	delete(c.tasks, t.id)
	if !t.seen {
		close(t.done)
	}
	if !t.proc.Started && !t.proc.Ended && !t.unborn() {
		w.end(t.proc, 137)
	}
	c.publish(w, t.id, t.proc.pid, 137, w.wall())
}

// drop deletes a task, and its shim with the last of its tasks.
func (c *containerdState) drop(w *World, t *task) {
	delete(c.tasks, t.id)
	if t.seen && !t.told {
		t.shim.early(w)
	}
	if t.shim.stays {
		return
	}
	for _, other := range c.tasks {
		if other.shim == t.shim {
			return
		}
	}
	delete(c.shims, t.shim.id)
}

// startShim starts a shim for a sandbox without a process, or lets the shim of its group serve it,
// too.
func (c *containerdState) startShim(id, group string) {
	if group != "" {
		for _, s := range sorted(c.shims) {
			if s.group == group && !s.dead {
				c.shims[id], s.pods[id] = s, true
				return
			}
		}
	}
	c.shims[id] = &shim{id: id, group: group, stays: true, pods: map[string]bool{id: true}}
}

// endShim takes a sandbox without a process from its shim, which ends with the last of them.
func (c *containerdState) endShim(w *World, id string) {
	s := c.shims[id]
	delete(s.pods, id)
	if len(s.pods) == 0 || s.dead {
		if !s.dead {
			w.loseShim(s)
		}
		c.cleanUp(w, s)
		return
	}
	delete(c.shims, id)
	for _, t := range sorted(c.tasks) {
		if t.pod == id {
			w.loseTask(t)
			c.cleanUpTask(w, t)
		}
	}
}

// groups are the pods that share shims, as one life of berth knows them.
type groups map[string][]string // pods by group

// join chooses the group of a new sandbox: one that has room and a shim that lives, or a new one.
func (g groups) join(c *containerdState, id string, most int) string {
	for _, group := range slices.Sorted(maps.Keys(g)) {
		s := c.shims[g[group][0]]
		if len(g[group]) < most && s != nil && !s.dead {
			g[group] = append(g[group], id)
			return group
		}
	}
	group := "group-" + Short(id)
	g[group] = []string{id}
	return group
}

// leave takes a sandbox out of its group.
func (g groups) leave(id string) {
	for group, pods := range g {
		if pods = slices.DeleteFunc(pods, func(o string) bool { return o == id }); len(pods) == 0 {
			delete(g, group)
		} else {
			g[group] = pods
		}
	}
}
