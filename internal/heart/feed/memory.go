// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"slices"
	"time"
)

// rememberLocked keeps the newest event of each container that was not deleted.
func (f *Feed) rememberLocked(it item) {
	if isDeletion(it.ev) {
		f.memory.drop(it.ev.GetContainerId())
		return
	}
	f.memory.put(it)
	if f.memory.len() <= f.cfg.Backlog {
		return
	}
	if lost := f.memory.evict(); len(f.subs) == 0 && lost.handed.IsZero() {
		f.dropped++ // if there are subscribers, each of them counts its own
	}
}

// handedLocked notes that it was handed to s. If it had been handed to another subscriber before s
// joined, it is a replay and does not become younger: subscribers that come and go would keep it
// for ever.
func (f *Feed) handedLocked(s *Subscription, it item, now time.Time) {
	e := f.memory.get(it.ev.GetContainerId())
	if e == nil || e.seq != it.seq {
		return // it is not remembered any more, or a newer one of its container is
	}
	if e.handed.IsZero() || !e.handed.Before(s.joined) {
		e.handed = now
	}
}

// ageLocked forgets events that were handed out more than Keep ago. It looks at the oldest events
// alone, whose cost evens out over the calls, unless all is true.
func (f *Feed) ageLocked(now time.Time, all bool) {
	if len(f.subs) == 0 {
		return // time stands still
	}
	f.memory.forget(f.levelLocked(now).Add(-f.cfg.Keep-f.cfg.Keep/grain), all)
}

// levelLocked returns the instant that counts as now when events are forgotten: by then every
// subscriber that is here, or to which something is owed, had taken everything that there was.
func (f *Feed) levelLocked(now time.Time) time.Time {
	if len(f.subs) > 0 { // else time stands still for debts too
		f.debts = slices.DeleteFunc(f.debts, func(d debt) bool {
			return now.Sub(d.at) >= f.cfg.Keep+f.cfg.Keep/grain
		})
	}
	level := now
	for _, d := range f.debts {
		level = earlier(level, d.level)
	}
	for s := range f.subs {
		if !s.waiting {
			level = earlier(level, s.level)
		}
	}
	return level
}

// joinLocked makes s a subscriber, which begins with everything that is remembered.
func (f *Feed) joinLocked(s *Subscription, now time.Time) {
	if len(f.subs) == 0 {
		// The first subscriber to come back must not use up the replay owed to the others that left.
		for i := range f.debts {
			f.debts[i].at = f.debts[i].at.Add(now.Sub(f.idleSince))
		}
	}
	f.ageLocked(now, true)
	// It has taken nothing of this yet: everything stays remembered until s has caught up, and is
	// owed to s if it leaves before.
	s.level = f.levelLocked(now)
	for e := range f.memory.all() {
		s.queue.push(e.item) // it has room for Backlog containers, so it drops nothing
	}
	f.subs[s] = struct{}{}
}

// leaveLocked undoes joinLocked.
func (f *Feed) leaveLocked(s *Subscription, now time.Time) {
	s.stopWaitingLocked(now)
	f.ageLocked(now, true)
	f.oweLocked(s.level, now)
	delete(f.subs, s)
	f.idleSince = now // it is read only if s was the last subscriber
}

// oweLocked adds a debt, or adds to the last one if that is recent.
func (f *Feed) oweLocked(level, now time.Time) {
	if n := len(f.debts); n > 0 && now.Sub(f.debts[n-1].at) < f.cfg.Keep/grain {
		f.debts[n-1].level = earlier(f.debts[n-1].level, level)
		return
	}
	f.debts = append(f.debts, debt{at: now, level: level})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
