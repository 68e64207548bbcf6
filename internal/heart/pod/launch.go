// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// launcher is the road of most starts: it makes a task and starts it.
type launcher struct {
	tasks     Tasks
	processes *processes
	witnesses *witnesses
	taskMaker *taskMaker
	ready     *readiness
	obs       Observer
}

// run makes the task, lets the witnesses watch it, and starts it. made is the program that the
// process executed until then, which belongs to the OCI runtime.
func (l *launcher) run(ctx context.Context, u *unit) (proc state.Process, made pidfd.Program, err error) {
	pid, err := l.taskMaker.make(ctx, u)
	if err != nil {
		return proc, made, err
	}
	if proc, err = l.processes.watch(u, pid); err != nil {
		return proc, made, err
	}
	if err := l.processes.record(u, proc); err != nil {
		return proc, made, err
	}
	u.move(stageMade)
	if err := l.processes.delegate(u, proc.Cgroup); err != nil {
		return proc, made, err
	}
	if err := l.ready.check(ctx, u); err != nil {
		return proc, made, err
	}
	made = l.processes.program(u, proc.Pid)
	err = l.tasks.StartTask(ctx, u.id)
	u.evidence.mayHaveRun(err == nil || ctx.Err() != nil || unanswered(err))
	if err != nil {
		// An answer may be lost although the start took effect. Then the kernel shows whether the
		// program runs. If the OCI runtime reports a failure, it has undone its work.
		if ctx.Err() != nil || !unanswered(err) || !l.processes.waitExec(ctx, u, proc.Pid, made, answerPatience) {
			return proc, made, err
		}
		l.obs.Note(u.id, event.StartUnanswered{Err: err.Error()})
	}
	l.witnesses.listen(u)
	return proc, made, nil
}
