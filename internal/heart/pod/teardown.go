// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/heart/state"
)

// teardown releases the objects that units hold outside berth.
type teardown struct {
	undoTimeout time.Duration
	objects     Objects
	layers      Layers
	tasks       Tasks
	shims       Shims
	gap         gap
	network     Network
	netns       NetNS
	files       Files
	pins        Pins
	volumes     *imageVolumes
	processes   *processes
	output      *output
	settler     *settler
	units       *registry
	orphans     *orphans
	names       *inflight
	lanes       *lanes
	pacer       *lane.Pacer
	labels      Labels // nil without SELinux
	publisher   *publisher
	obs         Observer
}

// due returns the holds that a unit has to release now. After an exit these are the ones that
// belong to the process alone. Objects that a person may still want to inspect, or that the pod's
// other containers use, are released once a stop or a removal was requested.
func due(u *unit, st *state.Status) state.Hold {
	if !st.Phase.Ended() && (st.Phase != state.Created || !st.Removing) { // CREATED: it never ran
		return 0
	}
	d := state.HoldTask | state.HoldIO | state.HoldPins
	switch {
	case !u.isSandbox():
		d |= state.HoldSandbox // it kept the ended task from containerd's clean-up, and the task is gone
	case st.Stopping:
		d |= state.HoldNetwork | state.HoldNetNS
	}
	if st.Removing {
		d = ^state.Hold(0)
	}
	if u.isPinned() && u.serves(nil) {
		// the shim, and everything that depends on it
		d &^= state.HoldTask | state.HoldSandbox | state.HoldFiles
	}
	return st.Holds & d
}

// release releases the holds that are due, in order, and records each. It is attempted by the
// unit's lane. Each part is idempotent; a failure does not keep later, independent parts from being
// tried. The error names the remaining parts.
func (t *teardown) release(ctx context.Context, u *unit, first bool) error {
	if first || t.pacer.Waits(u.id) {
		done, err := t.pacer.Admit(ctx, u.id, u.hurried.Notice())
		if err != nil {
			return err
		}
		defer done()
	}
	st := u.now()
	if u.isSandbox() && st.Removing {
		if err := t.removeMembers(u); err != nil {
			return err
		}
	}
	want := due(u, st)
	// The network needs nothing of the rest, and its plug-ins take their time.
	task, net := sequence{want: want, id: u.id}, sequence{want: want, id: u.id}
	var side sync.WaitGroup
	side.Go(func() {
		net.release(state.HoldNetwork, 0, func() error { return t.releaseNetwork(ctx, u) })
		net.release(state.HoldNetNS, state.HoldNetwork, func() error { return t.removeNetNS(ctx, u) })
		if networks := state.HoldNetwork | state.HoldNetNS; u.isSandbox() && st.Stopping && st.Holds&networks&^net.gone == 0 {
			u.disconnected.Happen()
		}
	})
	task.release(state.HoldTask, 0, func() error { return t.releaseTask(ctx, u) })
	task.release(state.HoldIO, state.HoldTask, func() error { return t.output.release(ctx, u) })
	own := sequence{want: want, id: u.id, gone: task.gone}
	side.Go(func() {
		own.release(state.HoldSandbox, state.HoldTask, func() error { return t.objects.DeleteSandbox(ctx, u.id) })
		own.release(state.HoldFiles, state.HoldTask, func() error { return t.files.Remove(u.id) })
		own.release(state.HoldPins, 0, func() error { return t.pins.Remove(u.id) })
		own.release(state.HoldViews, state.HoldTask|state.HoldFiles, func() error { return t.volumes.release(ctx, u) })
	})
	task.release(state.HoldContainer, state.HoldTask, func() error { return t.objects.DeleteContainer(ctx, u.id) })
	task.release(state.HoldSnapshot, state.HoldTask|state.HoldContainer, func() error {
		return t.releaseSnapshot(ctx, u)
	})
	task.release(state.HoldAdopted, state.HoldTask|state.HoldIO|state.HoldContainer, func() error { return t.releaseAdopted(ctx, u) })
	side.Wait()
	gone := task.gone | own.gone | net.gone
	err := errors.Join(append(append(task.errs, own.errs...), net.errs...)...)

	if st.Removing && st.Holds&^gone == 0 && err == nil {
		if err = t.forget(u); err == nil {
			t.shimServed(u.pod)
			return nil
		}
	}
	if gone != 0 {
		cerr := u.change(func(st *state.Status) bool {
			st.Holds &^= gone
			return true
		})
		if cerr == nil {
			t.obs.Note(u.id, event.Released{What: gone.Names(), Holds: u.now().Holds.Names()})
			if gone.Has(state.HoldTask) {
				t.shimServed(u.pod)
			}
		}
		err = errors.Join(err, cerr)
	}
	u.setReleaseError(err)
	return err
}

// sequence gives back one thing after another.
type sequence struct {
	want state.Hold // of everything
	id   string
	gone state.Hold
	errs []error
}

// release gives back h with f, if h is wanted and the holds in after are gone.
func (s *sequence) release(h, after state.Hold, f func() error) {
	if !s.want.Has(h) || s.want&after&^s.gone != 0 {
		return
	}
	if err := absent(guard(f)); err != nil {
		s.errs = append(s.errs, fmt.Errorf("release %s of %s: %w", h, s.id, err))
		return
	}
	s.gone |= h
}

func (t *teardown) releaseSnapshot(ctx context.Context, u *unit) error {
	snapshotter := u.container.Snapshotter
	if u.attempt().spare {
		if err := absent(t.layers.DeleteSnapshot(ctx, snapshotter, spareKey(u.id))); err != nil {
			return err
		}
	}
	return t.layers.DeleteSnapshot(ctx, snapshotter, u.id)
}

// removeNetNS removes the pin of a sandbox's network namespace. For an adopted sandbox it is the
// pin that the previous runtime made.
func (t *teardown) removeNetNS(ctx context.Context, u *unit) error {
	if u.sandbox.Adopted != nil {
		return t.netns.RemoveAdopted(ctx, u.sandbox.NetNS)
	}
	return t.netns.Remove(ctx, u.sandbox.NetNS)
}

// releaseAdopted removes the objects that the previous runtime made for u.
func (t *teardown) releaseAdopted(ctx context.Context, u *unit) error {
	a := u.adopted()
	if a == nil {
		return nil
	}
	if err := t.files.RemoveAdopted(u.id, a.Dirs, a.Files); err != nil {
		return err
	}
	errs := []error{}
	for _, s := range a.Snapshots { // nothing of them is mounted any more
		errs = append(errs, absent(t.layers.DeleteSnapshot(ctx, s.Snapshotter, s.Key)))
	}
	if a.Lease != "" {
		errs = append(errs, absent(t.layers.DeleteLease(ctx, a.Lease)))
	}
	return errors.Join(errs...)
}

// releaseTask ends the remaining processes and deletes the task.
func (t *teardown) releaseTask(ctx context.Context, u *unit) error {
	// A start in flight still works on the task, even when its process has ended by now.
	if err := lockSoon(ctx, u); err != nil {
		return fmt.Errorf("wait for the start in flight: %w", err)
	}
	defer u.task.unlock()
	return t.deleteAround(ctx, u)
}

// lockSoon takes the task of u within some seconds, because an attempt of a lane does not wait for
// another holder for as long as that may take.
func lockSoon(ctx context.Context, u *unit) error {
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	return u.task.lock(ctx)
}

// deleteTask kills the process of u, waits for its end, calls ended with the shim's answer about
// it, and deletes the task. u.task must be held.
func (t *teardown) deleteTask(ctx context.Context, u *unit, ended func(*unit, TaskState, error) error) error {
	// A process that was made and never started is in no record, and would wait for ever if it were
	// not killed.
	if t.processes.observe(u) == processUnreachable {
		if st, err := u.workload.State(ctx); err != nil || !st.Stopped { // the shim has reaped it
			return fmt.Errorf("neither the kernel nor its shim can tell whether process %d of %s lives", u.process().Pid, u.id)
		}
	}
	if _, err := t.processes.endRestored(ctx, u); err != nil {
		return err
	}
	if err := t.processes.end(ctx, u); err != nil {
		// If the kill did not happen, the end is not waited for, even if the process was never started or
		// is unknown. No kill is needed only if the shim has reaped the process or has never had one.
		st, serr := u.workload.State(ctx)
		none := errdefs.IsNotFound(serr) && t.processes.observe(u) == processUnknown
		if ctx.Err() != nil || !none && (serr != nil || !st.Stopped) {
			return fmt.Errorf("kill the processes of %s: %w", u.id, err)
		}
		t.obs.Note(u.id, event.LeftoversNotKilled{Err: err.Error()}) // the deletion will show
	}
	// The kernel is faster than the shim, which refuses to delete a task before it has seen its end.
	st, err := t.waitEnd(ctx, u)
	if errors.Is(err, errUnseen) {
		return err
	}
	if err := ended(u, st, err); err != nil {
		return err
	}
	if err == nil {
		t.gap.pass(ctx, u, st)
	}
	err = u.workload.Delete(ctx)
	if absent(err) != nil && u.process().Cgroup != "" {
		// The OCI runtime takes a container for paused whose group is frozen, although nothing is in it.
		if thawed, _ := t.processes.cgroups.ThawAll(u.process().Cgroup); thawed {
			err = u.workload.Delete(ctx)
		}
	}
	if absent(err) != nil {
		return err
	}
	if err == nil && !u.isSandbox() && u.now().StartedAt.IsZero() {
		// Of several starts that were cut off the shim may know the first alone: it has deleted
		// nothing of the last one, whose OCI runtime it killed half-way.
		if err := t.tasks.EndLeft(ctx, u.id); err != nil {
			return err
		}
	}
	// A process can outlive its shim, and then only the kernel knows about it.
	if err := t.processes.waitGone(ctx, u); err != nil {
		return err
	}
	t.processes.forget(u)
	return nil
}

// errUnseen means that the shim has not seen the end of a process in time.
var errUnseen = errors.New("its shim has not seen its end")

// waitEnd returns when the process of u has ended, according to the shim. It waits for some
// seconds, not for as long as the attempt may take, and insists on the end meanwhile. A shim that
// does not answer by then is asked for its state, for which half of the attempt is left.
func (t *teardown) waitEnd(ctx context.Context, u *unit) (st TaskState, err error) {
	patience := shimPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/2)
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = t.processes.insisting(wait, u, func(ctx context.Context) (err error) {
		st, err = askEnd(ctx, u)
		return err
	})
	if err == nil || wait.Err() == nil {
		return st, err
	}
	if ctx.Err() == nil {
		if st, err = u.workload.State(ctx); err == nil && st.Stopped || errdefs.IsNotFound(err) {
			return st, err
		}
	}
	// Not err, which may be "not found", and so count as done.
	return TaskState{}, heldError(u, fmt.Errorf("%w: %w", errUnseen, ctxError(wait)))
}

// askEnd asks the shim to answer when the process of u has ended. The task of a container that was
// not restored yet has no process to wait for: that is ErrNotFound.
func askEnd(ctx context.Context, u *unit) (TaskState, error) {
	if u.restored() && u.process().Pid == 0 {
		st, err := u.workload.State(ctx)
		switch {
		case err != nil || st.Stopped:
			return st, err
		case st.Pid == 0:
			return TaskState{}, fmt.Errorf("task %s has no process: %w", u.id, errdefs.ErrNotFound)
		}
	}
	return u.workload.Wait(ctx)
}

// lastCode asks the shim for the exit code, if no witness had it, before the code is deleted
// together with the task. The shim's answer is also the last chance to learn the code of the
// process if only that of its first thread is known.
func (t *teardown) lastCode(u *unit, st TaskState, err error) error {
	known := u.now().Exit
	if known.Rank() == exit.OfThread && err == nil && st.Stopped {
		u.evidence.add(taskFact(u.id, st), true)
		if better, _ := u.evidence.known(); better.Contradicts(known) {
			better = t.settler.ooms.judge(context.Background(), u, better) // bounded
			if err := t.settler.correct(u, better); err != nil {
				return err
			}
		}
	}
	if known.Measured || known.Zero() || errdefs.IsNotFound(err) {
		return t.settler.lastOOM(u)
	}
	if err != nil {
		return fmt.Errorf("ask the shim for the exit code: %w", err)
	}
	fact := taskFact(u.id, st)
	u.evidence.add(fact, false)
	known, _ = u.evidence.known()
	if !fact.At.IsZero() {
		// The instant on record, which stays, may be a guess, and so was whether it was the OOM killer.
		known.At = fact.At
	}
	known = t.settler.ooms.judge(context.Background(), u, known) // bounded
	return t.settler.correct(u, known)
}

// undoStart undoes a start that a kill of berth cut off before the user's program ran: the
// container is CREATED as if it had never been started. It is attempted by the unit's lane. A
// request of the start to containerd may still reach the shim: once the program runs, nothing is
// taken back, and the next comparison adopts it.
func (t *teardown) undoStart(ctx context.Context, u *unit) error {
	if err := lockSoon(ctx, u); err != nil {
		return fmt.Errorf("undo the start of %s: %w", u.id, err)
	}
	defer u.task.unlock()
	if st := u.now(); st.Phase != state.Created || st.Removing || u.attempt().at == stageGivenUp {
		u.moveAsRecorded()
		u.compared.Happen()
		return nil
	}
	st, err := u.workload.State(ctx)
	if absent(err) != nil {
		return fmt.Errorf("undo the start of %s: %w", u.id, err)
	}
	if st.Running {
		return u.keepStart()
	}
	// If berth is killed, the next one knows that berth killed the process.
	if err := u.markTakingBack(); err != nil {
		return err
	}
	u.move(stageTakingBack)
	if err := t.takeBack(ctx, u); err != nil {
		return fmt.Errorf("undo the start of %s: %w", u.id, err)
	}
	u.move(stageNone)
	t.obs.Note(u.id, event.StartTakenBack{})
	u.compared.Happen()
	t.shimServed(u.pod)
	return nil
}

// takeBack undoes a start that did not get to the user's program. u.task must be held.
func (t *teardown) takeBack(ctx context.Context, u *unit) error {
	// The record forgets the process before the task is deleted: a task without a process on record
	// was never started, whereas a process on record without a task is one whose exit code is lost.
	forget := func(u *unit, _ TaskState, _ error) error {
		if err := t.processes.waitGone(ctx, u); err != nil {
			return err
		}
		return u.change(func(st *state.Status) bool {
			known := st.Process.Pid != 0 || st.Start != state.Start{}
			st.Process, st.Start = state.Process{}, state.Start{}
			return known
		})
	}
	if err := t.deleteTask(ctx, u, forget); err != nil {
		return err
	}
	// When the caller of a creation goes away, containerd deletes the bundle although the shim may
	// just be mounting the root filesystem in it. The files of the container are deleted with it.
	u.setSpare(true)
	err := t.layers.RenewSnapshot(ctx, u.container.Snapshotter, u.id, spareKey(u.id))
	if absent(err) != nil {
		return err
	}
	u.setSpare(err != nil)
	if err := t.output.discard(u); err != nil { // last: it shows that a start was begun
		return err
	}
	u.setProcess(state.Process{})
	return nil
}

func (t *teardown) releaseNetwork(ctx context.Context, u *unit) error {
	return t.network.Teardown(ctx, netPod(u.sandbox), netResult(u.now().Network))
}

// undo releases the objects of a failed creation. Objects that cannot be released at once stay in
// the record, which is marked as ended and to be removed, and the lane of the unit finishes the
// release.
func (t *teardown) undo(ctx context.Context, u *unit, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.undoTimeout)
	defer cancel()
	if err := u.change(func(st *state.Status) bool {
		st.Removing, st.Stopping, st.Undone = true, true, why.Error()
		if !st.Phase.Ended() {
			st.Phase = u.endedPhase()
			st.Exit = exit.NotStarted(u.id, u.clock.Now(), why.Error())
		}
		return true
	}); err != nil {
		// Still CREATING on disk: the lane tries until it can be recorded, or recovery undoes it.
		u.evidence.add(exit.NotStarted(u.id, u.clock.Now(), why.Error()), false)
		t.lanes.settle(u)
		return err
	}
	if err := t.lanes.waitRemoved(ctx, u); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// removeMembers schedules the removal of the containers that joined the sandbox u while its own
// removal was being recorded: the call that asked for that may be gone.
func (t *teardown) removeMembers(u *unit) error {
	for _, ct := range u.containers() {
		if err := absent(markRemoving(context.Background(), ct)); err != nil {
			return err
		}
		switch {
		case ct.runs(): // the audit kills it
		case ct.now().Phase == state.Creating:
			ct.interrupt(errStopRequested)
		default:
			t.lanes.releaseNow(ct)
		}
	}
	return nil
}

// errMembers means that the removal of a sandbox waits for that of its containers.
var errMembers = errors.New("its containers are still being removed")

// forget deletes the record of u, which holds nothing any more.
func (t *teardown) forget(u *unit) error {
	if u.isSandbox() {
		if n := u.members.seal(); n > 0 {
			return fmt.Errorf("remove sandbox %s: %w: %d", u.id, errMembers, n)
		}
	}
	if err := u.erase(); err != nil {
		return err
	}
	t.units.drop(u)
	t.names.free(nameOf(u), u.id)
	t.processes.forget(u)
	if u.behind.Load() {
		t.orphans.reapSoon(u.id, orphan{shim: u.isPinned()})
	}
	if t.labels != nil && u.label() != "" {
		t.labels.Release(u.label())
	}
	t.publisher.publish(u, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	if u.isSandbox() {
		t.publisher.forget(u)
	} else if u.pod.now().Removing {
		t.lanes.poke(u.pod.id) // it may have waited for this container
	}
	t.obs.Note(u.id, event.Removed{})
	u.removed.Happen()
	return nil
}

// shimServed schedules the release of the shim of the sandbox u if u has ended: one of its tasks is
// gone, which may have been the last.
func (t *teardown) shimServed(u *unit) {
	if st := u.now(); u.isPinned() && st.Phase.Ended() && st.Holds.Has(state.HoldTask) {
		t.lanes.release(u)
	}
}
