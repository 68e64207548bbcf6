// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/exit"
)

// evidence is what is known of the end of one unit before it is settled: the facts of the
// witnesses, and what berth itself did to the process.
type evidence struct {
	mu    sync.Mutex
	since time.Time // of the first fact
	fact  exit.Fact // the facts that count, merged
	// hint is what others than the kernel reported while the kernel watches the process. It
	// supplies the code that the kernel may lack, and nothing else.
	hint exit.Fact
	more chan struct{} // closed, and replaced, when fact or hint grow

	kills   int           // SIGKILLs of berth's own that were delivered, or are on their way
	stops   int           // stop signals of berth's own, likewise
	sending int           // how many of both are on their way
	sent    chan struct{} // closed when none is any more; nil while none is
	// givenUp is why a start was given up. The process that was made for it is killed, unless it
	// has ended before: ranOut says that it has, and that nobody could be asked how.
	givenUp error
	ranOut  bool
}

func (e *evidence) init(f exit.Fact) {
	e.fact, e.more = f, make(chan struct{})
}

// add merges a fact and reports whether it said anything new.
func (e *evidence) add(f exit.Fact, hint bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	into := &e.fact
	if hint {
		into = &e.hint
	}
	merged, more := exit.Merge(*into, f)
	if more {
		if e.since.IsZero() {
			e.since = time.Now()
		}
		*into = merged
		close(e.more)
		e.more = make(chan struct{})
	}
	return more
}

// known returns what is known, with the hint's code where the kernel could not give one, and a
// channel that is closed when there is more.
func (e *evidence) known() (exit.Fact, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.fact
	if f.Zero() {
		return f, e.more
	}
	if e.hint.Measured {
		f, _ = exit.Merge(f, e.hint)
	}
	if e.givenUp != nil && (!f.Measured && !e.ranOut || f.Origin == exit.Start || f.Signal() == int(unix.SIGKILL)) {
		f = exit.NotStarted(f.ID, f.At, e.givenUp.Error())
	}
	return f, e.more
}

// noticedAt returns when the first fact arrived.
func (e *evidence) noticedAt() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since
}

// hasEnded reports whether a fact that counts has arrived.
func (e *evidence) hasEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.fact.Zero()
}

// measured reports whether a witness has reported the exit code, or the start that there is none.
func (e *evidence) measured() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fact.Measured || e.hint.Measured
}

// giveUp notes that a start was given up. The first reason stands.
func (e *evidence) giveUp(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.givenUp == nil {
		e.givenUp = why
	}
}

// endedAlone notes that the process of a start that was given up has ended, and that nobody could be
// asked how: it may have run. It reports false where berth has killed the process.
func (e *evidence) endedAlone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ranOut = e.kills == 0
	return e.ranOut
}

// kill and stop send a signal of berth's own. It counts from before it is sent, because the exit
// that it causes may be settled before send returns. A signal that could not be delivered does not
// count: it does not explain an exit.
func (e *evidence) kill(send func() error) error { return e.counted(&e.kills, send) }
func (e *evidence) stop(send func() error) error { return e.counted(&e.stops, send) }

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

// contested returns a channel that is closed once it is known whether a signal of berth's own, which
// is on its way, was delivered. It is nil where none is.
func (e *evidence) contested() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent
}

// explains reports whether a signal of berth's own explains an end.
func (e *evidence) explains(f exit.Fact) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kills > 0 || e.stops > 0 && f.Signal() != int(unix.SIGKILL)
}

// taskFact returns the fact that containerd's answer about an ended task states.
func taskFact(id string, st TaskState) exit.Fact {
	return exit.Fact{ID: id, Code: st.Code, Measured: true, At: st.ExitedAt, Origin: exit.Task}
}
