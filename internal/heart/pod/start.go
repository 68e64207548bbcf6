// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
	"berth/internal/host/spec"
)

// starter starts containers.
type starter struct {
	objects   Objects
	tasks     Tasks
	units     *registry
	files     Files
	hooks     Hooks // nil for none
	ops       *operations
	lanes     *lanes
	processes *processes
	witnesses *witnesses
	updater   *updater
	taskMaker *taskMaker
	publisher *publisher
	obs       Observer
}

// run starts u, or joins the start in flight. A start outlives the call that asked for it.
func (s *starter) run(ctx context.Context, u *unit) error {
	if err := s.lanes.waitCompared(ctx, u); err != nil {
		return err
	}
	joined := u.attempt().inFlight()
	if err := u.task.lock(ctx); err != nil {
		return fmt.Errorf("another operation on it is in flight: %w", err)
	}
	if st := u.now(); joined && !st.StartedAt.IsZero() {
		u.task.unlock()
		return nil
	}
	if err := mayStart(u); err != nil {
		u.task.unlock()
		return err
	}
	done := make(chan error, 1)
	u.move(stageMaking)
	if !s.ops.spawn(func() {
		ctx, cancel := s.ops.outlive(ctx)
		defer cancel()
		ctx, over := u.interruptible(ctx)
		err := interrupted(ctx, guard(func() error { return s.start(ctx, u) }))
		over()
		if err != nil {
			s.abandon(u, err)
		}
		u.task.unlock()
		done <- err
	}) {
		u.task.unlock()
		return errStopping
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("it goes on, ask for its status: %w", ctxError(ctx))
	}
}

// mayStart returns why u cannot be started.
func mayStart(u *unit) error {
	switch st := u.now(); {
	case st.Removing:
		return fmt.Errorf("it is being removed: %w", errdefs.ErrFailedPrecondition)
	case st.Phase != state.Created:
		return fmt.Errorf("it is %s, not CREATED: %w", st.Phase, errdefs.ErrFailedPrecondition)
	case u.evidence.hasEnded():
		return fmt.Errorf("an earlier start took effect, and it has ended: %w", errdefs.ErrFailedPrecondition)
	case u.attempt().at == stageGivenUp:
		return fmt.Errorf("an earlier start failed and is being settled: %w", errdefs.ErrFailedPrecondition)
	}
	return u.pod.mustBeReady()
}

// errRemoved ends the creation or the start of a container that is to be removed.
var errRemoved = fmt.Errorf("its removal was asked for meanwhile: %w", errdefs.ErrFailedPrecondition)

// start makes the task, starts it and records that it runs. u.task must be held.
func (s *starter) start(ctx context.Context, u *unit) error {
	began := time.Now()
	if err := s.updater.beforeStart(ctx, u); err != nil {
		return err
	}
	launch := s.launch
	if u.restored() {
		launch = func(ctx context.Context, u *unit) (proc state.Process, none pidfd.Program, err error) {
			proc, err = s.restore(ctx, u)
			return proc, none, err
		}
	}
	proc, made, err := launch(ctx, u)
	if err != nil {
		return err
	}
	at := time.Now()
	removing := false
	if err := u.change(func(st *state.Status) bool {
		removing = st.Removing && !st.Phase.Ended()
		if st.Phase == state.Created && !removing { // not when its exit was settled meanwhile
			st.Phase, st.StartedAt, st.Start = state.Running, at, state.Start{}
		}
		return !removing
	}); err != nil {
		return err
	}
	if removing {
		return errRemoved
	}
	u.move(stageStarted)
	s.processes.waitExec(ctx, u, proc.Pid, made, execPatience) // by now it has mostly happened
	s.obs.Note(u.id, event.ContainerRunning{By: event.ClientOf(ctx), Pid: proc.Pid, Took: time.Since(began)})
	s.publisher.started(u)
	if s.hooks != nil {
		s.hooks.Started(ctx, targetOf(u))
	}
	if u.now().Phase.Ended() {
		s.lanes.release(u) // settle may have run before the task was recorded, so schedule it again
	}
	return nil
}

// launch makes the task, lets the witnesses watch it, and starts it. made is the program that the
// process executed until then, which belongs to the OCI runtime.
func (s *starter) launch(ctx context.Context, u *unit) (proc state.Process, made pidfd.Program, err error) {
	pid, err := s.taskMaker.make(ctx, u)
	if err != nil {
		return proc, made, err
	}
	if proc, err = s.processes.watch(u, pid); err != nil {
		return proc, made, err
	}
	if err := s.processes.record(u, proc); err != nil {
		return proc, made, err
	}
	u.move(stageMade)
	if err := s.beforeRun(ctx, u); err != nil {
		return proc, made, err
	}
	made = s.processes.program(u, proc.Pid)
	err = s.tasks.StartTask(ctx, u.id)
	u.evidence.mayHaveRun(err == nil || ctx.Err() != nil || unanswered(err))
	if err != nil {
		// An answer may be lost although the start took effect. Then the kernel shows whether the
		// program runs. If the OCI runtime reports a failure, it has undone its work.
		if ctx.Err() != nil || !unanswered(err) || !s.processes.waitExec(ctx, u, proc.Pid, made, answerPatience) {
			return proc, made, err
		}
		s.obs.Note(u.id, event.StartUnanswered{Err: err.Error()})
	}
	s.witnesses.listen(u)
	return proc, made, nil
}

// restore is launch for a container that is restored from a checkpoint. Its process runs from the
// moment that it exists, so the record first notes that there may be one, and its cgroup: if the
// restore is cut off, the processes in that cgroup are ended, or adopted once the shim names them.
func (s *starter) restore(ctx context.Context, u *unit) (state.Process, error) {
	made, err := s.objects.Spec(ctx, u.id)
	if err != nil {
		return state.Process{}, err
	}
	from := UnpackedIn(s.files.Checkpoint(u.id))
	if _, err := s.taskMaker.make(ctx, u); err != nil {
		return state.Process{}, err
	}
	stdio := u.stdio()
	defer func() { _ = stdio.Started() }() // also when the shim was not asked, and never will be
	// The fields of an earlier start are cleared, because a start that counts as taken back has no
	// exit.
	begun := state.Start{Restoring: made.Linux.CgroupsPath}
	if err := u.change(func(st *state.Status) bool { st.Start = begun; return true }); err != nil {
		return state.Process{}, err
	}
	u.move(stageRestoring)
	if err := s.beforeRun(ctx, u); err != nil {
		return state.Process{}, err
	}
	err = s.tasks.RestoreTask(ctx, u.id, from.Work)
	u.evidence.mayHaveRun(err == nil || ctx.Err() != nil || unanswered(err))
	if err == nil {
		err = s.checkTarget(ctx, u) // a restore joins the namespaces
	}
	if serr := stdio.Started(); err == nil {
		err = serr
	}
	if err != nil {
		return state.Process{}, err
	}
	return s.watchRestored(ctx, u)
}

// watchRestored makes the witnesses watch the process that the shim has restored, and records it.
// One that has ended by now is a start that succeeded: the shim has its code.
func (s *starter) watchRestored(ctx context.Context, u *unit) (state.Process, error) {
	st, err := s.tasks.TaskState(ctx, u.id)
	if err != nil {
		return state.Process{}, err
	}
	var proc state.Process
	if st.Running {
		proc, err = s.processes.watch(u, st.Pid)
		switch {
		case errdefs.IsNotFound(err): // it has ended, and the shim is about to learn it
			st, err = s.tasks.WaitTask(ctx, u.id)
		case err == nil:
			// The process could have ended before it was watched, and its PID be another's now. The
			// shim reaps it, and knows: if it still runs, then the watched process is the right
			// one.
			st, err = s.tasks.TaskState(ctx, u.id)
		}
		if err != nil {
			s.processes.forget(u) // it may be another's, and is not to be killed by its PID
			return proc, err
		}
	}
	switch {
	case st.Stopped:
		s.processes.forget(u)
		s.witnesses.reportFor(u, taskFact(u.id, st))
		return state.Process{}, nil
	case !st.Running:
		return proc, errors.New("the shim did not report the restored process")
	}
	if err := s.processes.record(u, proc); err != nil {
		return proc, err
	}
	u.move(stageMade)
	s.witnesses.listen(u)
	if s.processes.ended(u) {
		// The witnesses may have reported the end before the process was on record, when they were
		// ignored.
		s.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit})
	}
	// The unpacked checkpoint is not needed any more, and may be as large as the memory of a
	// process. If berth is killed before this, it is removed with the container.
	if err := s.files.RemoveCheckpoint(u.id); err != nil {
		s.obs.Note(u.id, event.CheckpointLeft{Err: err.Error()})
	}
	return proc, nil
}

// beforeRun does the last steps before the program of u runs.
func (s *starter) beforeRun(ctx context.Context, u *unit) error {
	// The spec names the namespaces of the sandbox's process by its PID. If that process ended
	// before they were joined, the PID may have been another process's.
	switch s.processes.observe(u.pod) {
	case processGone:
		return fmt.Errorf("the process of sandbox %s has ended: %w", u.pod.id, errdefs.ErrFailedPrecondition)
	case processUnreachable:
		return fmt.Errorf("the kernel cannot tell whether the process of sandbox %s, whose namespaces it joins, is alive: %w", u.pod.id, errdefs.ErrUnavailable)
	case processAlive, processUnknown:
	}
	if err := s.checkTarget(ctx, u); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.hooks == nil {
		return nil
	}
	return s.hooks.Starting(ctx, targetOf(u))
}

// checkTarget refuses to run u in the PID namespace of another process than the one it asked for.
// The OCI specification names that namespace by the PID that the target had when u was created. Now
// that the task is made, the namespace was joined: it was the target's if the target still lives.
func (s *starter) checkTarget(ctx context.Context, u *unit) error {
	ns := u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET || !u.handler.HostProcess {
		return nil
	}
	t, err := s.units.findContainer(ns.GetTargetId())
	if err != nil {
		return fmt.Errorf("its target container, whose PID namespace it joins: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	made, err := s.objects.Spec(ctx, u.id)
	if err != nil {
		return err
	}
	pid := t.process().Pid
	if !slices.ContainsFunc(made.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path == spec.PIDNamespaceOf(pid)
	}) {
		return fmt.Errorf("target container %s has another process than when this container was created; create it again: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	switch s.processes.observe(t) {
	case processAlive:
		return nil
	case processGone:
		return fmt.Errorf("target container %s has ended, and its PID namespace cannot be joined: %w", t.id, errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("the kernel cannot tell whether target container %s, whose PID namespace it joins, is alive: %w", t.id, errdefs.ErrUnavailable)
	}
}

// abandon gives up a start that failed; the lane settles it.
func (s *starter) abandon(u *unit, why error) {
	s.obs.Note(u.id, event.StartFailed{Err: why.Error()})
	if s.ops.stopping() {
		return // whether it was started is seen when berth is back
	}
	u.giveUp(why)
	s.lanes.settle(u)
}
