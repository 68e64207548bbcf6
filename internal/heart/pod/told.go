// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/host/pidfd"
)

const (
	// forceAfter is how long a process that was killed has to end before more is done about it. Nearly
	// every process needs some milliseconds.
	forceAfter = time.Second
	// forceAgain is the time between two times that more is done.
	forceAgain = 3 * time.Second
	// heldPatience is how long a call waits for the end of a process that was killed before it
	// returns with the reason for the delay. The wait for the end goes on without the call.
	heldPatience = 30 * time.Second
	// shimPatience is how long one attempt of a lane waits for the end of a process, or for its
	// shim to see that. An answer may take as long as the attempt may.
	shimPatience = 10 * time.Second
)

// told is the end of the process of one unit, once it was told to end.
//
//	         SIGKILL was delivered         a second later            every 3 s
//	untold ────────────────────────▶ told ───────────────▶ forced ◀──────────┐
//	   ▲                               │                      └──────────────┘
//	   └── it has ended, or is another ┴──────────────────────────┘
//
// A process that was killed can be kept from its end: by another one that traces it and holds it at
// its exit, which needs no privilege; by a cgroup that is frozen; by a disk that does not answer.
// So every wait for the end of a process calls [processes.insist] every second, which is the only
// way from told to forced. The audit does so for those that have no other waiter.
type told struct {
	mu     sync.Mutex
	of     pidfd.Process // that was told; zero: untold, or one that only its shim knows
	since  time.Time     // of the first SIGKILL; zero: untold
	forced time.Time     // when everything was done for its end the last time
	held   string        // the reason why it has not ended, as far as it is known
}

// tell notes that SIGKILL was delivered to a process.
func (t *told) tell(of pidfd.Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() || t.of != of {
		t.of, t.since, t.forced, t.held = of, time.Now(), time.Time{}, ""
	}
}

// forget notes that the process has ended, or that another one takes its place.
func (t *told) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of, t.since, t.forced, t.held = pidfd.Process{}, time.Time{}, time.Time{}, ""
}

// due reports whether more is to be done for the end of a process now.
func (t *told) due(of pidfd.Process) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dueLocked(of)
}

func (t *told) dueLocked(of pidfd.Process) bool {
	if t.since.IsZero() || t.of != of {
		return false
	}
	return time.Since(t.since) >= forceAfter && (t.forced.IsZero() || time.Since(t.forced) >= forceAgain)
}

// force reports whether more is to be done for the end of a process now, by the caller alone, and
// how long ago the process was told to end.
func (t *told) force(of pidfd.Process) (waited time.Duration, now bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dueLocked(of) {
		return 0, false
	}
	t.forced = time.Now()
	return time.Since(t.since), true
}

// note records the reason why a process has not ended, and reports whether that is news. It is also
// news if the process has ended meanwhile.
func (t *told) note(of pidfd.Process, held string) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() || t.of != of {
		return true
	}
	news = t.held != held
	t.held = held
	return news
}

// holding returns the reason why a process that was told to end has not ended; "" if there is no
// such process, or if the reason is unknown.
func (t *told) holding() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// kill sends SIGKILL to the process of u with send, and notes that it is told to end.
func (p *processes) kill(u *unit, send func() error) error {
	err := send()
	if err == nil {
		u.told.tell(u.process().Process)
	}
	return err
}

// insist does all that can be done for the end of the process of u, if it was told to end, and if
// that is due. Waits for that end call it every second.
func (p *processes) insist(ctx context.Context, u *unit) {
	// After the settle the process is not watched any more, or there was none that the kernel knows.
	if p.ended(u) || u.evidence.hasEnded() && slices.Contains([]observedProcess{processGone, processUnknown}, p.observe(u)) {
		u.told.forget()
		return
	}
	of := u.process().Process
	waited, ok := u.told.force(of)
	if !ok {
		return
	}
	held, err := p.force(ctx, u)
	e := event.EndHeld{By: held, Since: waited}
	if err != nil {
		e.Err = err.Error()
	}
	if u.told.note(of, held) {
		p.obs.Note(u.id, e)
	}
}

// force does all that can be done for the end of the process of u. held is the reason why it had
// not ended so far.
func (p *processes) force(ctx context.Context, u *unit) (held string, err error) {
	proc := u.process()
	switch p.observe(u) {
	case processAlive:
		return p.cgroups.Force(proc.Cgroup, proc.Process)
	case processUnreachable:
		return fmt.Sprintf("the kernel cannot tell whether process %d lives", proc.Pid), nil
	case processUnknown:
		ctx, cancel := context.WithTimeout(ctx, forceAfter) // the caller has others to look at
		defer cancel()
		return "its shim has not reported its end", absent(u.workload.Kill(ctx, unix.SIGKILL))
	case processGone:
	}
	return "nothing: it has ended, and no witness has reported it yet", nil
}

// errHeld means that a process was killed and has not ended.
var errHeld = errors.New("it was killed and has not ended")

// heldError adds to an error the reason why the process of u has not ended, if there is one.
func heldError(u *unit, err error) error {
	if held := u.told.holding(); held != "" && err != nil {
		return fmt.Errorf("%w: %s: %w", errHeld, held, err)
	}
	return err
}

// insisting calls [processes.insist] every second while wait waits for the end of the process of u,
// and returns wait's error.
func (p *processes) insisting(ctx context.Context, u *unit, wait func(ctx context.Context) error) error {
	done := make(chan error, 1) // wait ends with ctx
	go func() { done <- wait(ctx) }()
	look := time.NewTicker(forceAfter)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
			p.insist(ctx, u)
		}
	}
}
