// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
)

// recovery reconciles the records with the outside: at boot, after each new connection to
// containerd, and periodically.
type recovery struct {
	cfg       Config
	make      units
	runtime   Runtime
	network   Network
	units     *registry
	names     *inflight
	processes *processes
	witnesses *witnesses
	ooms      *oomWatcher
	output    *output
	lanes     *lanes
	publisher *publisher
	orphans   *orphans
	damaged   *damaged
	labels    Labels // nil without SELinux
	obs       Observer
	// restored is closed when the records are in the registry: the audit waits for it.
	restored chan struct{}
	// relisting is how many comparisons with containerd are under way.
	relisting atomic.Int32
}

// restore takes the loaded records, opens berth's own resources of each unit (the log, the pidfd)
// and publishes the ends that may not have been received. It asks neither containerd nor a shim, so
// that berth can serve at once; [recovery.relist] compares with containerd afterwards.
func (r *recovery) restore(loaded state.Loaded) {
	if s := loaded.Salvage; s.Mended > 0 {
		r.obs.Note("", event.RecordsMended{Bits: s.Mended, Kept: s.Kept})
	}
	if s := loaded.Salvage; len(s.Lost) > 0 {
		r.obs.Note("", event.RecordsLost{What: s.Lost, Kept: s.Kept})
	}
	for _, d := range loaded.Damaged {
		r.damaged.add(d)
	}
	for _, id := range loaded.Orphans {
		r.obs.Note(id, event.StatusDeleted{})
	}
	inOrder(&loaded, r.cfg.Clock)
	for _, rec := range loaded.Sandboxes {
		if rec.ShimGroup != "" {
			r.runtime.RejoinGroup(rec.ID, rec.ShimGroup, r.handlerOf(rec.Handler), rec.Status.Holds.Has(state.HoldTask))
		}
		r.add(r.make.sandbox(rec.Sandbox, rec.Status, r.handlerOf(rec.Handler)))
	}
	for _, rec := range loaded.Containers {
		p, ok := r.units.get(rec.PodID)
		if !ok || !p.isSandbox() {
			r.damaged.add(state.Damaged{
				Kind:      state.KindContainer,
				ID:        rec.ID,
				Err:       fmt.Errorf("the record names the sandbox %q, which has no readable record", rec.PodID),
				Container: rec.Container,
				Status:    rec.Status,
			})
			continue
		}
		r.add(r.make.container(rec.Container, rec.Status, p))
	}
	for _, u := range r.units.all() {
		r.publisher.assume(u)
		if u.now().Phase.Ended() && !u.now().Removing {
			r.publisher.stopped(u)
		}
	}
	// Only now that every unit is known: a watched process may end at once, and a pod that is being
	// removed would be forgotten without the containers that are not known yet.
	for _, u := range r.units.all() {
		r.open(u)
	}
	close(r.restored)
}

// handlerOf returns the handler of a record. One that is not configured any more still has to be
// watched and released: the record's name with the common properties will do.
func (r *recovery) handlerOf(name string) Handler {
	if h, ok := r.cfg.Handlers[name]; ok {
		return h
	}
	return Handler{Name: name, HostProcess: true}
}

func (r *recovery) add(u *unit) {
	r.units.add(u)
	if !r.names.take(nameOf(u), u.id) && !u.now().Removing {
		r.obs.Note(u.id, event.NameTaken{Names: u.names()})
	}
}

// open opens berth's own resources of u: its log, its SELinux label and its pidfd.
func (r *recovery) open(u *unit) {
	if u.now().Phase == state.Creating {
		// Before any other fact about it arrives: the end of a process of an interrupted creation
		// is not an exit of the unit.
		r.undo(u)
	}
	u.setSpare(!u.isSandbox()) // until it is compared
	if err := r.output.reopen(u); err != nil {
		r.obs.Note(u.id, event.OutputUnread{Err: err.Error()}) // the release tries again
	}
	u.moveAsRecorded() // its stdio shows that a start was begun
	if r.labels != nil && u.label() != "" {
		if err := r.labels.Reserve(u.label()); err != nil {
			r.obs.Note(u.id, event.LabelNotReserved{Err: err.Error()})
		}
	}
	if u.now().Holds.Has(state.HoldTask) {
		r.processes.observe(u) // so that its end from now on is measured
		r.ooms.arm(u)
	}
	if u.isSandbox() && u.runs() && u.now().Network != nil {
		r.network.Restore(netPod(u.sandbox), netResult(u.now().Network))
	}
	if pending(u.now()) {
		r.lanes.update(u)
	}
	if u.isPinned() && u.runs() {
		// Its namespaces may be lost, because the host was started again: that needs no containerd.
		r.witnesses.ask(context.Background(), u) // it waits for nothing
	}
}

// relist compares every unit with everything that containerd has: events may have been lost. It
// reports whether it is to be done again soon: a shim did not answer, or a unit could not be
// compared for the first time.
func (r *recovery) relist(ctx context.Context) (soon bool, err error) {
	r.relisting.Add(1)
	defer r.relisting.Add(-1)
	before := r.units.statuses()
	inv, err := r.runtime.Inventory(ctx)
	if err != nil {
		return false, fmt.Errorf("relist: %w", err)
	}
	r.compare(ctx, inv, before)
	r.orphans.find(ctx, inv, before)
	return len(inv.Unreachable) > 0 || slices.ContainsFunc(r.units.all(), func(u *unit) bool { return !u.compared.Happened() }), nil
}

// compare decides for each unit and acts. An error of one unit does not affect the others. A unit
// whose status has changed since before is left alone: the inventory may be older than the change.
func (r *recovery) compare(ctx context.Context, inv Inventory, before map[string]*state.Status) {
	var g errgroup.Group
	g.SetLimit(16)
	for _, u := range r.units.all() {
		g.Go(func() error {
			if !u.task.tryLock() {
				return nil // an operation of berth's own is at work on it and will see for itself
			}
			defer u.task.unlock()
			if u.now() == before[u.id] && !u.erased.Load() {
				r.act(ctx, u, inv)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// sandboxTimeout bounds the question to a sandbox controller.
const sandboxTimeout = time.Second

// act decides for u and carries out the decision. u.task must be held.
func (r *recovery) act(ctx context.Context, u *unit, inv Inventory) {
	o, task := r.observe(ctx, u, inv)
	do := decide(o)
	was := u.noted
	u.noted = event.Compared{
		Phase:   string(o.Phase),
		Task:    string(o.Task),
		Process: string(o.Process),
		Action:  string(do),
	}
	// A unit that runs and is watched already stays as it is: that is not an event.
	same := do == actionWatch && u.compared.Happened() && (o.Task == taskRunning || u.noted == was)
	if do != actionNone && !same {
		r.obs.Note(u.id, u.noted)
	}
	if r.do(ctx, u, do, task) {
		u.compared.Happen()
	}
}

// observe returns the input of decide for u, and its task in containerd.
func (r *recovery) observe(ctx context.Context, u *unit, inv Inventory) (observed, TaskState) {
	st := u.now()
	if _, left := inv.Snapshots[spareKey(u.id)]; left || !u.compared.Happened() {
		u.setSpare(left)
	}
	task, has := inv.Tasks[u.id]
	unreachable := inv.Unreachable[u.id]
	// it is not a task
	if u.isSandbox() && u.sandbox.Sandboxer != "" || u.isPinned() && !st.Phase.Ended() {
		ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
		var err error
		task, err = u.workload.State(ctx)
		cancel()
		has, unreachable = err == nil, absent(err) != nil
	}
	if u.unopened.Load() {
		_ = r.output.reopen(u)
	}
	ran := task.Stopped && taskFact(u.id, task).Signal() != int(unix.SIGKILL)
	return observed{
		Phase:    st.Phase,
		Removing: st.Removing,
		Stopping: u.pod.now().Stopping,
		Attempt:  u.attempt().found(st, u.begun(), ran),
		Holds:    st.Holds.Has(state.HoldTask),
		Due:      due(u, st) != 0,
		Task:     observeTask(task, has, unreachable),
		Process:  r.processes.observe(u),
	}, task
}

// do carries out a decision for u. It returns false if the outcome of an earlier start of u is not
// known yet: the lane, or the next relist, tries again.
func (r *recovery) do(ctx context.Context, u *unit, do action, task TaskState) bool {
	switch do {
	case actionLater:
		return false
	case actionUndoStart:
		u.move(stageCutOff)
		r.lanes.undoStart(u)
		return false
	case actionHold:
		r.holdAgain(u)
		r.release(u)
		return true
	case actionRelease:
		r.release(u)
		return true
	}
	if err := u.keepStart(); err != nil {
		r.obs.Note(u.id, event.StartNotKept{Err: err.Error()})
		return false
	}
	switch do {
	case actionWatch:
		r.resume(u, task)
	case actionAdopt:
		return r.adopt(ctx, u, task)
	case actionReport:
		r.witnesses.reportFor(u, taskFact(u.id, task))
	case actionMeasure:
		r.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit})
	case actionLost:
		r.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit, Message: "its process was gone and containerd did not know it any more"})
	case actionAbandon:
		if u.attempt().at != stageGivenUp { // otherwise the start, or its shim, has reported that
			u.evidence.mayHaveRun(u.process().Pid != 0) // on record before it is started
		}
		u.giveUp(errors.New("berth stopped while it was being started"))
		r.lanes.settle(u)
	case actionUndo:
		r.undo(u)
	}
	return true
}

// release schedules the rest of the release of u, at once.
func (r *recovery) release(u *unit) {
	r.lanes.poke(u.id) // the cause of the failure may be over
	r.lanes.release(u)
}

// undo schedules the undoing of a creation that was cut off.
func (r *recovery) undo(u *unit) {
	u.evidence.add(exit.NotStarted(u.id, u.clock.Now(), "berth stopped while it was being made"), false)
	r.lanes.settle(u)
}

// resume continues with a unit that runs: its log and the task witness.
func (r *recovery) resume(u *unit, known TaskState) {
	if err := r.output.reopen(u); err != nil {
		r.obs.Note(u.id, event.OutputUnread{Err: err.Error()})
	}
	if u.now().Process.Pid == 0 && known.Pid != 0 {
		if p, err := r.processes.watch(u, known.Pid); err == nil {
			u.setProcess(p)
			r.ooms.arm(u)
		}
	}
	r.witnesses.listen(u)
}

// adopt records a start whose success was not recorded when berth was cut off. It reports false if
// whether the container runs cannot be seen or recorded: the next relist tries again.
func (r *recovery) adopt(ctx context.Context, u *unit, known TaskState) bool {
	p, err := r.processes.watch(u, known.Pid)
	if recorded := u.process(); err != nil && !errdefs.IsNotFound(err) && recorded.Pid == known.Pid && recorded.StartTicks != 0 {
		p, err = recorded, nil // its shim answers that it runs, and the kernel is asked again later
	}
	if errdefs.IsNotFound(err) {
		r.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit})
		return true
	}
	if err != nil {
		r.obs.Note(u.id, event.ProcessNotIdentified{Err: err.Error()})
		return false
	}
	if u.process().Pid == 0 {
		// The list is older than the watch, and no start time is on record: the process may have
		// ended, and its PID be another's. The shim knows.
		now, serr := u.workload.State(ctx)
		if serr != nil || !now.Running {
			r.processes.forget(u)
			if serr == nil && now.Stopped {
				r.witnesses.reportFor(u, taskFact(u.id, now))
				return true
			}
			unclear := event.TaskUnclear{}
			if serr != nil {
				unclear.Err = serr.Error()
			}
			r.obs.Note(u.id, unclear)
			return false
		}
	}
	u.setProcess(p)
	if err := r.output.reopen(u); err != nil {
		r.obs.Note(u.id, event.OutputUnread{Err: err.Error()})
	}
	adopted := false
	if err := u.change(func(st *state.Status) bool {
		if adopted = st.Phase == state.Created; adopted { // not when its exit was settled meanwhile
			st.Phase, st.Process, st.StartedAt, st.Start = u.runningPhase(), p, u.clock.Now(), state.Start{}
		}
		return adopted
	}); err != nil {
		r.obs.Note(u.id, event.StartNotRecorded{Err: err.Error()})
		return false
	}
	if !adopted {
		return true
	}
	u.move(stageStarted)
	r.witnesses.listen(u)
	r.publisher.started(u)
	return true
}

// holdAgain records that an ended unit holds a task once more: containerd carried out a start that
// berth had given up, after the task was released. Its process is not the one on record.
func (r *recovery) holdAgain(u *unit) {
	if err := u.change(func(st *state.Status) bool {
		st.Holds |= state.HoldTask
		st.Process = state.Process{}
		return true
	}); err != nil {
		r.obs.Note(u.id, event.LateTaskNotRecorded{Err: err.Error()}) // the next relist tries again
		return
	}
	u.setProcess(state.Process{})
	r.obs.Note(u.id, event.LateTask{})
}
