// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	"berth/internal/event"
	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/state"
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

// report takes a fact about the unit that it names. It never blocks: the fact is merged into what
// is known and the unit's lane does the rest. Facts about unknown IDs are dropped: exec processes
// have no unit, nor have containers of other namespaces.
//
// Where the kernel watches the process, it alone says that the process ended: a shim that died has
// containerd's clean-up report 137 for what it is about to kill. What others report then only
// supplies the code that the kernel may lack.
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
		// The container has no process: the fact is about the one of a start that was undone. That
		// of a start that failed may not have come on record. Nothing is lost if another start is
		// on its way: a process that ends before it is known fails the start.
		return
	}
	w.reportFor(u, f)
}

// reportFor takes a fact as report does, for a caller that knows that it is about the unit u as it
// is now.
//
// What another witness than the kernel says counts by what the kernel answers:
//
//   - alive: it is doubted, whoever says it. If the process ended all the same, the audit finds it.
//   - gone: it supplies the code that the kernel may lack.
//   - not asked, since the process is not one of this host's: it counts.
//   - cannot tell: the kernel has no veto, and what the shim has measured counts. That is a
//     [taskFact], the answer of a shim that is there: it has reaped the process. Nothing else does. An
//     event may be containerd's own, about a shim that is dead and a process that lives, and so may
//     the absence of a task; either is looked into by the audit, which asks the shim.
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
				// The kernel's own fact is on its way, or here. If it was lost, this one settles
				// the exit.
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
	u.oom.report(time.Now())
	if u.now().Phase.Ended() {
		w.lanes.correct(u) // the report came later than the end
		return
	}
	w.ooms.noted([]string{id})
}

// listen makes the task witness wait for the end of u: for the code where the kernel cannot give
// it, and for the end where the kernel does not see the process at all.
func (w *witnesses) listen(u *unit) {
	if w.processes.exact(u) {
		return // the kernel supplies end and code; the stream and the audit are there too
	}
	if !u.listening.CompareAndSwap(false, true) {
		return // every relist finds units that are listened to already
	}
	if !w.ops.spawn(func() {
		defer u.listening.Store(false)
		st, err := u.workload.Wait(w.ops.life)
		if err != nil || !st.Stopped {
			return // the connection broke: the relist on the next one asks
		}
		w.report(taskFact(u.id, st))
	}) {
		u.listening.Store(false)
	}
}
