// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"slices"
	"time"
)

// heardLocked notes that it was handed to s. If it had been handed to someone before s joined, it is sent
// again, and is no younger for that: subscribers that come and go would keep it for ever.
func (f *Feed) heardLocked(s *Subscription, it item, now time.Time) {
	e := f.memory.get(it.ev.GetContainerId())
	if e == nil || e.seq != it.seq {
		return // a newer one of its container is remembered in its place
	}
	if e.heard.IsZero() || !e.heard.Before(s.joined) {
		e.heard = now
	}
}

// ageLocked forgets what was handed out longer than Keep ago. It looks at the oldest events only, which
// costs nothing per call over time, unless all is asked for.
func (f *Feed) ageLocked(now time.Time, all bool) {
	if len(f.subs) == 0 {
		return // nobody listens: time stands still
	}
	f.memory.forget(f.levelLocked(now).Add(-f.cfg.Keep-f.cfg.Keep/grain), all)
}

// levelLocked is the instant that counts as now for what is forgotten: every subscriber that is here, or
// to which something is owed, had taken by then all there was.
func (f *Feed) levelLocked(now time.Time) time.Time {
	if len(f.subs) > 0 { // else the time of debts stands still
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

// joinLocked makes s a subscriber that begins with all that is remembered.
func (f *Feed) joinLocked(s *Subscription, now time.Time) {
	if len(f.subs) == 0 {
		// Whoever comes first must not use up what is owed to the others that left.
		for i := range f.debts {
			f.debts[i].at = f.debts[i].at.Add(now.Sub(f.idleSince))
		}
	}
	f.ageLocked(now, true)
	// What it is given now it has not taken yet: that stays remembered until s caught up, and is owed
	// to s if it leaves before.
	s.level = f.levelLocked(now)
	for e := range f.memory.all() {
		s.queue.push(e.item) // holds Backlog containers at least: neither coalesces nor drops
	}
	f.subs[s] = struct{}{}
}

// leaveLocked takes s out.
func (f *Feed) leaveLocked(s *Subscription, now time.Time) {
	s.stopWaitingLocked(now)
	f.ageLocked(now, true)
	f.oweLocked(s.level, now)
	delete(f.subs, s)
	f.idleSince = now // matters if s was the last
}

// oweLocked adds a debt, or adds to the last one where that is recent.
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
