// SPDX-License-Identifier: Apache-2.0

package exit

import "syscall"

// Evidence holds the facts about one end before it is settled: the facts of the witnesses, and
// berth's own actions on the process. Its methods may not be called at the same time.
type Evidence struct {
	// Fact is the facts that count, merged.
	Fact Fact
	// Hint holds the reports of witnesses other than the kernel while the kernel watches the
	// process. It supplies the code that the kernel may lack, and nothing else.
	Hint Fact
	// Kills counts the SIGKILLs of berth's own that were delivered, or are on their way, and Stops
	// the stop signals.
	Kills, Stops int

	// odd is two measured codes of this end that differ, the first two; zero while there are none.
	odd [2]Fact
	// givenUp is why a start was given up. The process that was made for it is killed, unless it
	// has ended before: ranOut is set if it has, with an unknown code.
	givenUp error
	ranOut  bool
	// ran is set unless it is known that the program of that start has not run.
	ran bool
}

// Add merges a fact, or a hint, and reports whether it was new.
func (e *Evidence) Add(f Fact, hint bool) (more bool) {
	into := &e.Fact
	if hint {
		into = &e.Hint
	}
	for _, said := range []Fact{e.Fact, e.Hint} {
		if e.odd[0].Zero() && f.Contradicts(said) {
			e.odd, more = [2]Fact{said, f}, true
		}
	}
	merged, further := Merge(*into, f)
	*into = merged
	return more || further
}

// Contradiction returns the first measured code that is not the one that stands, if two differ.
// Either the kernel gave one witness the code of a thread and another one that of the process, or
// one of them is wrong.
func (e *Evidence) Contradiction() (other Fact, differ bool) {
	known := e.Known()
	for _, f := range e.odd {
		if f.Contradicts(known) {
			return f, true
		}
	}
	return Fact{}, false
}

// Known returns the merged fact, with the hint's code if the kernel could not give one. It is zero
// as long as no fact counts. If the start of the process was given up, its end is that of the
// start, unless its program may have run: the code is then the program's, even if berth has killed
// it.
func (e *Evidence) Known() Fact {
	f := e.Fact
	if f.Zero() {
		return f
	}
	if e.Hint.Measured {
		f, _ = Merge(f, e.Hint)
	}
	if e.givenUp == nil {
		return f
	}
	if f.Origin == Start || !e.ran && (!f.Measured && !e.ranOut || killed(f)) {
		return NotStarted(f.ID, f.At, e.givenUp.Error())
	}
	if killed(f) && e.Kills > 0 && f.Message == "" {
		f.Message = "its start failed, its program may have begun, and berth has killed it: " + e.givenUp.Error()
	}
	return f
}

// Measured reports whether a witness has reported the exit code, or the start that there is none.
func (e *Evidence) Measured() bool { return e.Fact.Measured || e.Hint.Measured }

// GiveUp notes that a start was given up. The first reason stands.
func (e *Evidence) GiveUp(why error) {
	if e.givenUp == nil {
		e.givenUp = why
	}
}

// IsGivenUp reports whether the start was given up.
func (e *Evidence) IsGivenUp() bool { return e.givenUp != nil }

// MayHaveRun notes whether the program of a start may have run. Without it, a start that was given
// up did not get so far. The last call wins.
func (e *Evidence) MayHaveRun(ran bool) { e.ran = ran }

// EndedAlone notes that the process of a start that was given up has ended with an unknown code: it
// may have run. It returns false if berth has killed the process, unless its program may have run
// by then.
func (e *Evidence) EndedAlone() bool {
	e.ranOut = e.Kills == 0 || e.ran
	return e.ranOut
}

// Explains reports whether a signal of berth's own explains an end.
func (e *Evidence) Explains(f Fact) bool { return e.Kills > 0 || e.Stops > 0 && !killed(f) }

// killed reports whether SIGKILL ended the process.
func killed(f Fact) bool { return f.Signal() == int(syscall.SIGKILL) }
