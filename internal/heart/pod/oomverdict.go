// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
)

// oomNear is how long before the end of a container an OOM kill may be to explain the end.
const oomNear = time.Second

// oomRise is the interval in which the counter of OOM kills of a container last grew. Both instants
// are the same if the kernel notified berth. If berth was away, or could not be notified, the first
// one is the time of the reading before.
type oomRise struct {
	from, to clock.Instant
	limit    exit.Limit // that was reached; "" if the counters do not tell
	// late is set if the process may have ended before the counter was read, at an unknown time:
	// the second instant is meaningless then.
	late bool
}

// oomEvidence holds the readings about OOM kills in the group of one container.
type oomEvidence struct {
	mu      sync.Mutex
	counter oomCounter
	known   bool // the counter, or its pod's, was read after the end
	unread  bool // the end was settled although the counter, which was there, could not be read
	armed   bool // the kernel notifies of kills
	all     bool // also of those that follow from the node's lack of memory
	vain    bool // it was asked to in vain, and is asked again
	looking bool // the counter is being read for a moment
	again   bool // and is to look for longer
	// reported is when containerd reported an OOM kill the last time.
	reported clock.Instant
}

// begin forgets the counts of an earlier start's group, which was undone, at an instant.
func (e *oomEvidence) begin(at clock.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counter = oomCounter{at: at}
}

// miss notes that the kernel has notified of a kill, and that the counter could not be read: a kill
// that is found later may be that one, until the audit has the counter read.
func (e *oomEvidence) miss() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed, e.vain = false, true
}

// askedInVain reports whether the kernel, or the counter, has to be asked again before the kills of
// the container are noticed from now on.
func (e *oomEvidence) askedInVain() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.vain
}

// setUnread notes whether the counter still has to be read after the end.
func (e *oomEvidence) setUnread(unread bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unread = unread
}

func (e *oomEvidence) isUnread() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unread
}

func (e *oomEvidence) isKnown() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known
}

// reading returns the state of the counter.
func (e *oomEvidence) reading() oomCounter {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counter
}

func (e *oomEvidence) report(at clock.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reported = at
}

// verdict reports whether the OOM killer explains an end, and whose limit was reached. If the
// counter could not be read after the end, containerd's report counts, which may be late. Package
// exit decides the meaning of an OOM kill for a container that ended well, or with an unknown code.
func (e *oomEvidence) verdict(f exit.Fact) (bool, exit.Limit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counter.last.explains(f) {
		return true, e.counter.last.limit
	}
	return !e.known && oomRise{from: e.reported, to: e.reported}.explains(f), exit.LimitUnknown
}

// tell adds the OOM evidence to told.
func (e *oomEvidence) tell(told event.Evidence) event.Evidence {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.counter
	told.OOMKills, told.OOMFrom, told.OOMTo, told.OOMLimit = c.kills, c.last.from, c.last.to, c.last.limit
	return told
}

// record writes the counts to a status.
func (e *oomEvidence) record(st *state.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.counter; c.kills > st.OOMKills {
		st.OOMKills, st.OOMKilledAt = c.kills, c.last.to
	}
}

// oomCounter is a counter of OOM kills as it was read last. It is a value, without clock or I/O.
type oomCounter struct {
	kills uint64
	sum   uint64        // as last read: without the counts of groups that were gone by then
	at    clock.Instant // when kills was read
	// of the memory limits of the group and those above, at that time; nil: not known
	hits     []uint64
	last     oomRise // zero: there was none
	survived uint64  // kills that are on record as survived
}

// read takes a reading of the counter at an instant, with the limits that were reached by then. It
// reports by how much the counter grew. live is set if the kernel would have notified of a kill
// long before; unless all is set, that excludes kills that the node's lack of memory caused.
func (c *oomCounter) read(kills uint64, hits []uint64, at clock.Instant, own, live, all bool) (grown uint64) {
	limit := limitReached(c.hits, hits, own)
	// the sum falls when a group is removed (cgroup v1)
	counted := c.kills + (kills - min(kills, c.sum))
	if c.sum, kills = kills, max(kills, counted); kills > c.kills {
		grown = kills - c.kills
		c.last = oomRise{from: c.at, to: at, limit: limit}
		if live && (all || limit != exit.LimitNode && limit != exit.LimitUnknown) {
			c.last.from = at
		}
		c.kills = kills
	}
	c.at = at
	if hits != nil {
		c.hits = hits
	}
	return grown
}

// limitReached names the innermost limit that was reached between two readings of the counters of a
// container's group and those above it. own is set if the group above belongs to its pod alone.
func limitReached(before, after []uint64, own bool) exit.Limit {
	if before == nil || len(before) != len(after) {
		return exit.LimitUnknown
	}
	for level, n := range after {
		switch {
		case n <= before[level]:
		case level == 0:
			return exit.LimitContainer
		case level == 1 && own:
			return exit.LimitPod
		default:
			return exit.LimitAbove
		}
	}
	return exit.LimitNode
}

// explains reports whether the OOM killer ended a container, given the last rise of its counter. It
// requires a kill within a second of the end. If the time of the kill is unknown, it may have been
// then: that is enough only if the program itself was killed, or if its code is unknown.
func (r oomRise) explains(f exit.Fact) bool {
	since := f.At.Add(-oomNear)
	switch {
	case r.to.IsZero() || r.to.Before(since) && !r.late:
		return false
	case !r.from.Before(since):
		return true
	}
	return !f.Measured || f.Signal() == int(unix.SIGKILL)
}
