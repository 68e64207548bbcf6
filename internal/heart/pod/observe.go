// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/base/retry"
	"berth/internal/heart/state"
)

// witnesses takes the facts that the witnesses report, and owns one of the witnesses: the task,
// that is containerd's Wait.
type witnesses struct {
	units     *registry
	processes *processes
	ooms      *oomWatcher
	lanes     *lanes
	pacer     *lane.Pacer
	ops       *operations
	obs       Observer
}

// report takes a fact about the unit that it names. It never blocks: the fact is merged into the
// evidence and the unit's lane does the rest. Facts about unknown IDs are dropped: exec processes
// have no unit, nor have containers of other namespaces.
//
// If the kernel watches the process, it alone decides that the process ended: when a shim died,
// containerd's clean-up reports 137 before it has killed the process. Other witnesses then only
// supply the code, which the kernel may lack.
func (w *witnesses) report(f exit.Fact) {
	u, ok := w.units.get(f.ID)
	if !ok {
		return
	}
	if f.Origin == exit.Stream {
		u.streamed.Happen() // also of a task that is taken back
	}
	if u.attempt().undone() {
		return
	}
	if u.isPinned() && f.Origin == exit.Stream {
		return // its shim has ended, which the sandbox outlives
	}
	pid := u.process().Pid
	if f.Pid != 0 && pid != 0 && f.Pid != pid {
		return // it is about the process of a start that was undone, and comes late
	}
	if u.now().Phase == state.Created && pid == 0 && u.attempt().at != stageGivenUp {
		// The container has no process: the fact is about the one of a start that was undone. The
		// process of a failed start may not have come on record. Nothing is lost if another start
		// is on its way: a process that ends before it is known fails the start.
		return
	}
	w.reportFor(u, f)
}

// reportFor takes a fact as report does, for a caller that knows that it is about the unit u as it
// is now.
//
// The report of another witness counts depending on the kernel's answer:
//
//   - alive: the report is doubted. If the process ended all the same, the audit finds it.
//   - gone: it supplies the code that the kernel may lack.
//   - not asked, because the process is not one of this host's: it counts.
//   - cannot tell: the kernel has no veto, and the shim's measurement counts. That is a [taskFact],
//     the answer of a shim that is there: it has reaped the process. Nothing else does. An event
//     may be containerd's own, about a shim that is dead and a process that lives, and so may the
//     absence of a task; either is looked into by the audit, which asks the shim.
func (w *witnesses) reportFor(u *unit, f exit.Fact) {
	hint := false
	if f.Origin != exit.Kernel {
		switch process := w.processes.observe(u); process {
		case processAlive:
			w.obs.Note(u.id, event.ExitDoubted{Exit: event.ExitOf(f), Process: string(process)})
			return
		case processUnreachable:
			if f.Origin != exit.Task || !f.Measured {
				w.obs.Note(u.id, event.ExitDoubted{Exit: event.ExitOf(f), Process: string(process)})
				return
			}
		case processGone:
			if hint = w.processes.ended(u); hint {
				// The kernel's own fact is on its way, or here. If it was lost, this one settles the exit.
				u.evidence.add(exit.Fact{ID: u.id, At: f.At, Origin: exit.Kernel}, false)
			}
		case processUnknown:
		}
	}
	if u.handler.SystemdCgroup {
		_ = w.ooms.reader.readOwn(u, f) // systemd removes the group at any moment; settle tries again
	}
	w.pacer.Reported(u.id)
	if !u.evidence.add(f, hint) && u.now().Phase.Ended() {
		return
	}
	w.obs.Note(u.id, event.ExitReported{Exit: event.ExitOf(f)})
	if known, _ := u.evidence.known(); !known.Zero() {
		w.lanes.settleAgain(u)
	}
}

// reportOOM takes containerd's report of an OOM kill. It counts where berth cannot read the
// container's cgroup itself: in a virtual machine, or when the cgroup vanished.
func (w *witnesses) reportOOM(id string) {
	u, ok := w.units.get(id)
	if !ok {
		return
	}
	w.obs.Note(id, event.OOMKillReported{})
	u.oom.report(u.clock.Now())
	if u.now().Phase.Ended() {
		w.lanes.correct(u) // the report came later than the end
		return
	}
	w.ooms.noted([]string{id})
}

// firstListen and longestListen bound the waits before the task witness asks again. They are not
// multiples of the audit's interval: see unevenly in test/sim.
const (
	firstListen   = 300 * time.Millisecond
	longestListen = 5 * time.Second
)

// listen makes the task witness wait for the end of u: for the code where the kernel cannot give
// it, and for the end where the kernel does not see the process at all. A wait that fails is begun
// again, for as long as there is something to wait for: a broken connection comes back, and one
// failed question proves nothing about u.
func (w *witnesses) listen(u *unit) {
	if w.processes.exact(u) {
		return // the kernel supplies end and code; the stream and the audit are there too
	}
	if u.isPinned() {
		return // its stop reports that itself, and the audit looks for its pins
	}
	if !u.listening.CompareAndSwap(false, true) {
		return // every relist finds units that are listened to already
	}
	if !w.ops.spawn(func() {
		defer u.listening.Store(false)
		for range retry.Doubling(w.ops.life.Done(), firstListen, longestListen) {
			st, err := u.workload.Wait(w.ops.life)
			if err == nil && st.Stopped {
				w.report(taskFact(u.id, st))
				return
			}
			if errdefs.IsNotFound(err) || u.now().Phase.Ended() {
				return // there is nothing to wait for; the audit finds the reason
			}
		}
	}) {
		u.listening.Store(false)
	}
}

// ask asks the workload of u whether it has ended, and reports the end. If it cannot answer now,
// the next audit asks again.
func (w *witnesses) ask(ctx context.Context, u *unit) {
	st, err := u.workload.State(ctx)
	switch {
	case errdefs.IsNotFound(err):
		why := "its task was gone when berth looked"
		if u.isPinned() {
			why = err.Error()
		}
		w.report(exit.Fact{ID: u.id, Origin: exit.Audit, Message: why})
	case err == nil && st.Stopped:
		w.report(taskFact(u.id, st))
	}
}
