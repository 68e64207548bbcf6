// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"berth/internal/base/event"
)

// series is the newest entry of a series of crashes, which has the whole series.
type series struct {
	crash  event.ContainerCrashed
	number uint64
	id     string
}

const (
	// seenTimeout is how long it may take to see what a container was last: its output may still be on
	// its way into the log, which may be on a disk that does not answer. Whoever is asked has so much
	// less of it that what was seen in time is not lost with the rest.
	seenTimeout = 5 * time.Second
	seenReserve = time.Second
	// maxSeeing is how many of these questions are open at once. Those that are not answered stay
	// open, and while there are so many nothing is asked.
	maxSeeing = 64
	// maxCrashes is how many crashes wait to be looked into. One too many is found again when the
	// next berth reads the ring.
	maxCrashes = 256
	// maxLog is how many of the last lines are kept, and maxLine how much of each, in bytes.
	maxLog  = 10
	maxLine = 256
)

// Seen is the last that was seen of a container.
type Seen struct {
	Log    []string // the last lines that it wrote
	Memory uint64   // the most that it used, in bytes; 0 if that is not known
	CPU    time.Duration
	Beside event.Use // see [event.Crash]
}

// crash is an end that belongs into a series.
type crash struct {
	id    string
	names event.Names
	exit  event.Exit
}

// reportLocked hands the crash of a container over to be looked into, if it has crashed. Before the
// ring was read nothing is, because it may have the series. r.mu must be held.
func (r *Recorder) reportLocked(h *history) {
	if h.crash() && len(r.crashes) < maxCrashes && r.isLoaded() {
		h.crashed = true
		r.crashes = append(r.crashes, crash{h.id, h.names, h.exit})
	}
}

// isLoaded reports whether the ring was read.
func (r *Recorder) isLoaded() bool {
	select {
	case <-r.loaded:
		return true
	default:
		return false
	}
}

// See returns the last that can be seen of a container, within a bound of seconds.
func (r *Recorder) See(ctx context.Context, id string) Seen {
	if r.cfg.Seen == nil || !r.seeing.TryAcquire(1) {
		return Seen{}
	}
	ctx, cancel := context.WithTimeout(ctx, seenTimeout)
	defer cancel()
	answer := make(chan Seen, 1)
	go func() {
		defer r.seeing.Release(1)
		ctx, cancel := context.WithTimeout(ctx, seenTimeout-seenReserve)
		defer cancel()
		seen := r.cfg.Seen(ctx, id)
		seen.Log = bounded(seen.Log)
		answer <- seen
	}()
	select {
	case s := <-answer:
		return s
	case <-ctx.Done():
		return Seen{}
	}
}

// addCrash adds a crash to its series.
func (r *Recorder) addCrash(c crash, seen Seen) {
	last := event.Crash{
		Exit:    c.exit,
		Attempt: c.names.Attempt,
		Log:     seen.Log,
		Memory:  seen.Memory,
		CPU:     seen.CPU,
		Beside:  seen.Beside,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := event.ContainerCrashed{
		Names: c.names,
		Count: 1,
		First: last,
		Last:  last,
	}
	if s, ok := r.index.series[nameOf(c.names)]; ok {
		e.Count = s.crash.Count + 1
		// What took longer to look into than the next one comes after it.
		if s.crash.First.Ended.Before(e.First.Ended) {
			e.First = s.crash.First
		}
		if s.crash.Last.Ended.After(e.Last.Ended) {
			e.Last = s.crash.Last
		}
	}
	r.absorbLocked()
	r.appendLocked(event.Entry{At: r.cfg.Clock.Now(), ID: c.id, Event: e})
	signal(r.added)
}

// bounded returns the last of some lines, shortened.
func bounded(lines []string) []string {
	lines = lines[max(0, len(lines)-maxLog):]
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		if len(l) > maxLine {
			l = strings.ToValidUTF8(l[:maxLine], "") + "..."
		}
		out = append(out, l)
	}
	return out
}

// carryLocked appends what has to outlive a segment with the numbers below next: the newest entry
// of each series. As much as half a segment is carried, what crashed last first. A series that is
// too old is forgotten. r.mu must be held.
func (r *Recorder) carryLocked(next uint64, room int64) {
	var kept []series
	for name, s := range r.index.series {
		switch {
		case r.cfg.Clock.Age(s.crash.Last.Ended) > r.cfg.MaxAge:
			delete(r.index.series, name)
		case s.number < next:
			kept = append(kept, s)
		}
	}
	slices.SortFunc(kept, func(a, b series) int { return cmp.Compare(b.number, a.number) })
	fits := 0
	for _, s := range kept {
		if room -= int64(sizeOf(s.crash)); room < 0 {
			break
		}
		fits++
	}
	for _, s := range kept[fits:] {
		delete(r.index.series, nameOf(s.crash.Names))
	}
	for _, s := range slices.Backward(kept[:fits]) { // in their order
		r.appendLocked(event.Entry{At: s.crash.Last.Ended, ID: s.id, Event: s.crash})
	}
}

// sizeOf returns about how long the entry of a series is.
func sizeOf(e event.ContainerCrashed) int {
	n := 1024
	for _, l := range slices.Concat(e.First.Log, e.Last.Log) {
		n += len(l) + 8
	}
	return n
}
