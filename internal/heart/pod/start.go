// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/base/ops"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// starter starts containers.
type starter struct {
	hooks     Hooks // nil for none
	ops       *operations
	lanes     *lanes
	processes *processes
	detours   detours
	launcher  road
	restorer  road
	publisher *publisher
	obs       Observer
}

// road brings a start from CREATED to a process that runs, which it returns with the program that
// the process executed until then: the OCI runtime's own; zero if it is not known. u.task must be
// held.
type road interface {
	run(ctx context.Context, u *unit) (proc state.Process, made pidfd.Program, err error)
}

// road returns the one that the start of u takes.
func (s *starter) road(u *unit) road {
	if u.restored() {
		return s.restorer
	}
	return s.launcher
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
		ctx, _, end := s.ops.outlive(ctx, ops.Work{Kind: ops.Start, Of: u.object(), Then: "the start is given up"})
		defer end()
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
		return fmt.Errorf("it goes on in shim %s, ask for its status: %w", cmp.Or(u.pod.sandbox.ShimGroup, u.pod.id), ctxError(ctx))
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
	if err := s.detours.update(ctx, u); err != nil {
		return err
	}
	proc, made, err := s.road(u).run(ctx, u)
	if err != nil {
		return err
	}
	at := u.clock.Now()
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

// abandon gives up a start that failed; the lane settles it.
func (s *starter) abandon(u *unit, why error) {
	s.obs.Note(u.id, event.StartFailed{Err: why.Error()})
	if s.ops.stopping() {
		return // whether it was started is seen when berth is back
	}
	u.giveUp(why)
	s.lanes.settle(u)
}
