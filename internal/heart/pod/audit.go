// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/base/retry"
)

// firstRelist is the time until everything is compared again after a comparison was incomplete for
// the first time. Each further one that is incomplete doubles it, up to UnreachableInterval.
const firstRelist = 500 * time.Millisecond

// pinsEvery is how many audits pass between two looks at the pins of a sandbox without a process. A
// look costs a file and a system call for each namespace, and pins are lost only if another program
// unmounts them.
const pinsEvery = 5

// auditor is the witness that does not depend on any report. Every AuditInterval it asks the kernel
// about each process that should run, and containerd where the kernel does not know, and looks for
// the pins of each sandbox without a process. Every RelistInterval it has everything compared with
// containerd, and more often while that is incomplete: at first soon, because a shim may only be
// slow, and then less and less.
type auditor struct {
	cfg       Config
	units     *registry
	processes *processes
	witnesses *witnesses
	ooms      *oomWatcher
	output    *output
	stopper   *stopper
	lanes     *lanes
	recovery  *recovery
	ops       *operations
	obs       Observer

	soon retry.Wake // holds one "relist soon"

	audits int // so far; only run counts them

	mu     sync.Mutex
	asking map[string]bool // the question was asked and is not answered yet
}

// run audits until ctx ends. It begins once the records are restored: before that it would find the
// end of a process whose log is not open yet.
func (a *auditor) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.recovery.restored:
	}
	for _, u := range a.units.all() {
		a.goOn(u)
	}
	audit := time.NewTicker(a.cfg.AuditInterval)
	defer audit.Stop()
	relist := time.NewTimer(a.cfg.RelistInterval)
	defer relist.Stop()
	listed := make(chan bool, 1)
	var wait time.Duration         // before the relist to come, if the last one was incomplete
	running, again := false, false // a relist; and another one was asked for meanwhile
	var due time.Time              // of the relist to come
	next := func(d time.Duration) { due = time.Now().Add(d); relist.Reset(d) }
	for {
		select {
		case <-ctx.Done():
			return
		case <-audit.C:
			a.audit()
		case <-relist.C: // aside: the audit of the processes does not wait for containerd
			if !a.ops.spawn(func() { listed <- a.relist(ctx) }) {
				return
			}
			running = true
		case soon := <-listed:
			switch {
			case again:
				wait = firstRelist
			case soon:
				wait = min(max(2*wait, firstRelist), a.cfg.UnreachableInterval)
			default:
				wait = 0
			}
			running, again = false, false
			if a.awaited() {
				wait = min(cmp.Or(wait, longestAwaited), longestAwaited)
			}
			next(cmp.Or(wait, a.cfg.RelistInterval))
		case <-a.soon:
			if again = running; running { // one at a time
				break
			}
			wait = firstRelist
			if due.IsZero() || time.Until(due) > wait { // asking again and again does not put it off
				next(wait)
			}
		}
	}
}

// relist looks for changes that neither an event nor a new connection would show, and reports
// whether to call it again soon.
func (a *auditor) relist(ctx context.Context) (soon bool) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.AttemptTimeout)
	defer cancel()
	soon, err := a.recovery.relist(ctx)
	if err != nil {
		a.obs.Note("", event.NotCompared{Err: err.Error()})
	}
	return soon
}

// awaited reports whether a caller waits for a unit to be compared.
func (a *auditor) awaited() bool {
	return slices.ContainsFunc(a.units.all(), func(u *unit) bool {
		return !u.compared.Happened() && a.lanes.awaited(u)
	})
}

// relistAwaited asks for a comparison before long, because a caller waits for it. The comparison
// that is under way may be the one that is waited for.
func (a *auditor) relistAwaited() {
	if a.recovery.relisting.Load() == 0 {
		a.relistSoon()
	}
}

// relistSoon asks for a comparison before long.
func (a *auditor) relistSoon() { a.soon.Up() }

// audit compares once. The kernel goes first, for all units, and answers at once; containerd is
// asked aside, about each unit by itself. Findings are reported like the facts of any other
// witness.
func (a *auditor) audit() {
	a.audits++
	for _, u := range a.units.all() {
		if u.told.due(u.process().Process) && !a.processes.ended(u) {
			a.ask(u.id+" (killed)", func(ctx context.Context) { a.processes.insist(ctx, u) })
		}
		if u.attempt().at == stageGivenUp && !u.now().Phase.Ended() {
			a.auditProcess(u)
			continue
		}
		if !u.runs() {
			continue
		}
		a.witnesses.ooms.lookBelow(u)
		if !u.isPinned() || a.audits%pinsEvery == 0 {
			a.auditProcess(u)
		}
		a.resume(u)
		a.goOn(u)
		if u.now().Removing || u.pod.now().Stopping {
			// The call that asked for that is gone, or could not end it.
			a.ask(u.id, func(ctx context.Context) {
				if err := a.stopper.kill(ctx, u); err != nil {
					a.obs.Note(u.id, event.KillFailed{Err: err.Error()})
				}
			})
		}
	}
}

// goOn lets the stop of u that is on record go on, if no call waits for it: berth was restarted, or
// the client is gone.
func (a *auditor) goOn(u *unit) {
	if u.now().Stop == nil || !u.runs() || u.stops.any() {
		return
	}
	a.ask(u.id+" (stop)", func(context.Context) { // it may take longer than an attempt
		ctx, op := a.ops.list.Begin(a.ops.life, ops.Work{Kind: ops.Stop, Of: u.object()})
		defer op.End()
		if err := a.stopper.goOn(ctx, u); err != nil && ctx.Err() == nil {
			a.obs.Note(u.id, event.KillFailed{Err: err.Error()})
		}
	})
}

// auditProcess asks the kernel about the process of u, and the workload where the kernel knows of
// none: the shim of a task, or the pins of a sandbox without a process.
func (a *auditor) auditProcess(u *unit) {
	switch a.processes.observe(u) {
	case processAlive:
	case processGone:
		if known, _ := u.evidence.known(); known.Zero() {
			a.obs.Note(u.id, event.ExitFound{})
			a.witnesses.report(exit.Fact{ID: u.id, Origin: exit.Audit}) // another witness may know when
		}
	case processUnreachable, processUnknown:
		a.ask(u.id, func(ctx context.Context) { a.witnesses.ask(ctx, u) })
	}
}

// resume retries questions about a running unit that could not be answered before: for notices of
// its OOM kills, and for its output, which is not read until then.
func (a *auditor) resume(u *unit) {
	if !u.unopened.Load() && !u.oom.askedInVain() {
		return
	}
	a.ask(u.id+" (resumed)", func(context.Context) {
		if !u.task.tryLock() {
			return // the lock's holder may do the same
		}
		defer u.task.unlock()
		if !u.runs() {
			return
		}
		if u.oom.askedInVain() {
			a.ooms.arm(u)
		}
		if u.unopened.Load() {
			_ = a.output.reopen(u) // it was noted when that failed first, and the next audit is soon
		}
	})
}

// ask runs one question aside, unless the one of this name is in flight already: a question without
// an answer is asked once, and nothing waits for it.
func (a *auditor) ask(name string, question func(ctx context.Context)) {
	a.mu.Lock()
	busy := a.asking[name]
	a.asking[name] = true
	a.mu.Unlock()
	if busy {
		return
	}
	answered := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asking, name)
	}
	if !a.ops.spawn(func() {
		defer answered()
		ctx, cancel := context.WithTimeout(a.ops.life, a.cfg.AttemptTimeout)
		defer cancel()
		question(ctx)
	}) {
		answered()
	}
}

// oldest returns the age of the oldest exit that waits for a step: reported and not settled, or
// settled and not released. 0: none does.
func (a *auditor) oldest(step Step) time.Duration {
	var oldest time.Duration
	for _, u := range a.units.all() {
		st := u.now()
		var since clock.Instant
		switch {
		case step == StepSettle && !st.Phase.Ended():
			known, _ := u.evidence.known()
			since = known.At
		case step == StepRelease && due(u, st) != 0:
			since = st.Exit.At
		}
		if !since.IsZero() {
			oldest = max(oldest, u.clock.Since(since))
		}
	}
	return oldest
}
