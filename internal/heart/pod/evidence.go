// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"sync"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
)

// evidence holds the facts about the end of one unit before it is settled, with the instant at
// which it was noticed, and the signals in flight. [exit.Evidence] draws the conclusion.
type evidence struct {
	clock   *clock.Clock
	mu      sync.Mutex
	of      exit.Evidence
	since   clock.Instant // of the first fact
	said    []event.Said  // the added facts, in order, each with whether it was new
	more    chan struct{} // closed, and replaced, when there is more
	odd     bool          // contradiction has returned that two codes differ
	sending int           // how many signals of berth's own are on their way
	sent    chan struct{} // closed when none is any more; nil while none is
}

func (e *evidence) init(f exit.Fact, c *clock.Clock) {
	e.of.Fact, e.more, e.clock = f, make(chan struct{}), c
}

// add merges a fact, or a hint, and reports whether it was new.
func (e *evidence) add(f exit.Fact, hint bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.said) < maxSaid && !f.Zero() {
		e.said = append(e.said, event.Said{
			At:          e.clock.Now(),
			Witness:     f.Origin,
			Code:        f.Code,
			Measured:    f.Measured,
			FirstThread: f.FirstThread,
			Ended:       f.At,
			Hint:        hint,
		})
	}
	more := e.of.Add(f, hint)
	if more {
		if e.since.IsZero() {
			e.since = e.clock.Now()
		}
		close(e.more)
		e.more = make(chan struct{})
	}
	return more
}

// maxSaid is how many statements about one end are kept.
const maxSaid = 16

// told returns the evidence from which an exit is settled, for the timeline.
func (e *evidence) told() event.Evidence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return event.Evidence{
		Said:    slices.Clone(e.said),
		Kills:   e.of.Kills,
		Stops:   e.of.Stops,
		GivenUp: e.of.IsGivenUp(),
	}
}

// known returns the merged fact, and a channel that is closed when there is more.
func (e *evidence) known() (exit.Fact, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of.Known(), e.more
}

// contradiction returns, once, the measured code that does not stand, if two witnesses differ.
func (e *evidence) contradiction() (other exit.Fact, differ bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.odd {
		return exit.Fact{}, false
	}
	other, e.odd = e.of.Contradiction()
	return other, e.odd
}

// noticedAt returns when the first fact arrived.
func (e *evidence) noticedAt() clock.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since
}

// hasEnded reports whether a fact that counts has arrived.
func (e *evidence) hasEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.of.Fact.Zero()
}

// measured reports whether a witness has reported the exit code, or the start that there is none.
func (e *evidence) measured() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of.Measured()
}

// giveUp notes that a start was given up. The first reason stands.
func (e *evidence) giveUp(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of.GiveUp(why)
}

// mayHaveRun notes whether the program of a start may have run, which makes the end of its process
// an exit and not the end of a failed start. The last call wins.
func (e *evidence) mayHaveRun(ran bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of.MayHaveRun(ran)
}

// endedAlone notes that the process of a start that was given up has ended, and that its code is
// unknown. It returns false if berth has killed the process.
func (e *evidence) endedAlone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of.EndedAlone()
}

// kill and stop send a signal of berth's own. It counts from before it is sent, because the exit
// that it causes may be settled before send returns. A signal that could not be delivered does not
// count: it does not explain an exit.
func (e *evidence) kill(send func() error) error { return e.counted(&e.of.Kills, send) }
func (e *evidence) stop(send func() error) error { return e.counted(&e.of.Stops, send) }

func (e *evidence) counted(n *int, send func() error) error {
	e.mu.Lock()
	*n++
	if e.sending++; e.sending == 1 {
		e.sent = make(chan struct{})
	}
	e.mu.Unlock()
	err := send()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		*n--
	}
	if e.sending--; e.sending == 0 {
		close(e.sent)
		e.sent = nil
	}
	return err
}

// contested returns a channel that is closed once it is known whether a signal of berth's own, in
// flight now, was delivered. It is nil if there is none.
func (e *evidence) contested() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent
}

// explains reports whether a signal of berth's own explains an end.
func (e *evidence) explains(f exit.Fact) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of.Explains(f)
}

// taskFact returns the fact that containerd's answer about an ended task states.
func taskFact(id string, st TaskState) exit.Fact {
	return exit.Fact{ID: id, Code: st.Code, Measured: !st.NoCode, At: st.ExitedAt, Origin: exit.Task}
}
