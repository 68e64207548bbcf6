// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// restorer is the road of a container that is restored from a checkpoint.
type restorer struct {
	objects   Objects
	tasks     Tasks
	files     Files
	processes *processes
	witnesses *witnesses
	taskMaker *taskMaker
	ready     *readiness
	obs       Observer
}

// run is launcher.run for a container that is restored from a checkpoint. Its process runs from the
// moment that it exists, so the record first notes that there may be one, and its cgroup: if the
// restore is cut off, the processes in that cgroup are ended, or adopted once the shim names them.
func (r *restorer) run(ctx context.Context, u *unit) (proc state.Process, none pidfd.Program, err error) {
	made, err := r.objects.Spec(ctx, u.id)
	if err != nil {
		return state.Process{}, none, err
	}
	from := UnpackedIn(r.files.Checkpoint(u.id))
	if _, err := r.taskMaker.make(ctx, u); err != nil {
		return state.Process{}, none, err
	}
	stdio := u.stdio()
	defer func() { _ = stdio.Started() }() // also when the shim was not asked, and never will be
	// The fields of an earlier start are cleared, because a start that counts as taken back has no
	// exit.
	begun := state.Start{Restoring: made.Linux.CgroupsPath}
	if err := u.change(func(st *state.Status) bool { st.Start = begun; return true }); err != nil {
		return state.Process{}, none, err
	}
	u.move(stageRestoring)
	if err := r.ready.check(ctx, u); err != nil {
		return state.Process{}, none, err
	}
	err = r.tasks.RestoreTask(ctx, u.id, from.Work)
	u.evidence.mayHaveRun(err == nil || ctx.Err() != nil || unanswered(err))
	if err == nil {
		err = r.ready.checkTarget(ctx, u) // a restore joins the namespaces
	}
	if serr := stdio.Started(); err == nil {
		err = serr
	}
	if err != nil {
		return state.Process{}, none, err
	}
	proc, err = r.watchRestored(ctx, u)
	return proc, none, err
}

// watchRestored makes the witnesses watch the process that the shim has restored, and records it.
// One that has ended by now is a start that succeeded: the shim has its code.
func (r *restorer) watchRestored(ctx context.Context, u *unit) (state.Process, error) {
	st, err := r.tasks.TaskState(ctx, u.id)
	if err != nil {
		return state.Process{}, err
	}
	var proc state.Process
	if st.Running {
		proc, err = r.processes.watch(u, st.Pid)
		switch {
		case errdefs.IsNotFound(err): // it has ended, and the shim is about to learn it
			st, err = r.tasks.WaitTask(ctx, u.id)
		case err == nil:
			// The process could have ended before it was watched, and its PID be another's now. The
			// shim reaps it, and knows: if it still runs, then the watched process is the right
			// one.
			st, err = r.tasks.TaskState(ctx, u.id)
		}
		if err != nil {
			r.processes.forget(u) // it may be another's, and is not to be killed by its PID
			return proc, err
		}
	}
	switch {
	case st.Stopped:
		r.processes.forget(u)
		r.witnesses.reportFor(u, taskFact(u.id, st))
		return state.Process{}, nil
	case !st.Running:
		return proc, errors.New("the shim did not report the restored process")
	}
	if err := r.processes.record(u, proc); err != nil {
		return proc, err
	}
	u.move(stageMade)
	r.witnesses.listen(u)
	if r.processes.ended(u) {
		// The witnesses may have reported the end before the process was on record, when they were
		// ignored.
		r.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit})
	}
	// The unpacked checkpoint is not needed any more, and may be as large as the memory of a
	// process. If berth is killed before this, it is removed with the container.
	if err := r.files.RemoveCheckpoint(u.id); err != nil {
		r.obs.Note(u.id, event.CheckpointLeft{Err: err.Error()})
	}
	return proc, nil
}
