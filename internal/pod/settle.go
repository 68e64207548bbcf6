// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/state"
)

// late marks the lane of what is learned after an exit was settled: a better word must not wait behind a release that
// backs off.
const late = "/late"

// Step is what a lane attempts for one unit.
type Step string

const (
	StepSettle  Step = "settle"
	StepRelease Step = "release"
)

// Exited takes a witness's fact. It never blocks: the fact is merged into what is known and the
// unit's lane does the rest. Facts of unknown IDs are dropped: exec processes have none,
// other namespaces' containers neither.
//
// Where the kernel watches the process, it alone says that it ended: a shim that died takes
// containerd's word with it (its clean-up reports 137 for what it is about to kill), so
// what others say only supplies the code that the kernel may lack.
func (c *Controller) Exited(f exit.Fact) {
	u, ok := c.unit(f.ID)
	if !ok {
		return
	}
	hint := false
	if f.Origin != exit.Kernel {
		alive, watched := c.kernel.Look(f.ID)
		hint = watched
		if watched && !alive {
			// The process ended, so the kernel's own fact is on its way or here. Should it
			// have been lost, this offer is what settles the exit.
			u.hear(exit.Fact{ID: f.ID, At: f.At, Origin: exit.Kernel}, false)
		}
		if watched && alive {
			c.obs.Event(f.ID, "exit doubted: the kernel says that the process lives", nil, "told", f.String())
		}
	}
	if !u.hear(f, hint) && u.now().Phase.Ended() {
		return
	}
	c.obs.Event(f.ID, "exit heard", nil, "fact", f.String())
	switch known, _ := u.heard(); {
	case known.Zero():
	case u.now().Phase.Ended():
		c.lanes.Offer(f.ID+late, StepSettle)
	default:
		c.lanes.Offer(f.ID, StepSettle)
	}
}

// attempt is what the lanes run.
func (c *Controller) attempt(ctx context.Context, a lane.Attempt[Step]) lane.Result {
	u, ok := c.unit(strings.TrimSuffix(a.ID, late))
	if !ok {
		return lane.Done()
	}
	var err error
	switch a.Item {
	case StepSettle:
		err = c.settle(ctx, u)
	case StepRelease:
		err = c.release(ctx, u)
	}
	if err != nil {
		c.obs.Event(u.id, string(a.Item)+" attempt ended with an error", err, "attempt", a.N)
		return lane.Retry(err)
	}
	return lane.Done()
}

// settle turns what was heard into durable, visible state, and hands over to release.
func (c *Controller) settle(ctx context.Context, u *unit) error {
	known, _ := u.heard()
	if known.Zero() {
		return nil
	}
	if st := u.now(); st.Phase.Ended() {
		return c.improve(u, known)
	}
	if !known.Measured && known.Origin != exit.Start {
		known = c.measure(ctx, u)
	}
	if known.At.IsZero() {
		known.At = time.Now()
	}
	c.endLeftovers(ctx, u)
	known.OOM = known.OOM || c.oomKilled(u, known)
	c.drain(ctx, u)

	err := u.change(func(st *state.Status) bool {
		if st.Phase.Ended() {
			return false
		}
		if st.StartedAt.IsZero() && known.Origin != exit.Start {
			st.StartedAt = known.At // it ended before the call that started it returned
		}
		if known.At.Before(st.StartedAt) {
			known.At = st.StartedAt // the shim's clock and ours are read at different moments
		}
		if st.Phase == state.Creating && known.Origin == exit.Start { // given up: nobody was told of it
			st.Removing, st.Stopping, st.Undone = true, true, known.Message
		}
		st.Phase, st.Exit = u.ended(), known
		return true
	})
	if err != nil {
		return err
	}
	c.obs.Settled(u.id, string(known.Origin), time.Since(known.At))
	c.obs.Event(u.id, "settled", nil, "code", known.ExitCode(), "reason", known.Reason(), "origin", string(known.Origin))
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	c.lanes.Offer(u.id, StepRelease)
	return nil
}

// improve records a measured code that came after a guess was settled.
func (c *Controller) improve(u *unit, known exit.Fact) error {
	changed := false
	err := u.change(func(st *state.Status) bool {
		st.Exit, changed = exit.Merge(st.Exit, known)
		return changed
	})
	if err != nil || !changed {
		return err
	}
	c.obs.Event(u.id, "exit code learned after the fact", nil, "fact", u.now().Exit.String())
	c.tellAgain(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// measure waits, within its bound, for somebody who knows the code: the kernel after the
// reaping, the shim's event, the shim's answer to a question. What is known then is
// returned, measured or not.
func (c *Controller) measure(ctx context.Context, u *unit) exit.Fact {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.MeasureTimeout)
	defer cancel()
	type answer struct {
		st  TaskState
		err error
	}
	answered := make(chan answer, 1)
	c.spawn(func() {
		st, err := c.runtime.TaskState(ctx, u.id)
		answered <- answer{st, err}
	})
	for {
		known, more := u.heard()
		if known.Measured {
			return known
		}
		select {
		case a := <-answered:
			if a.err == nil && a.st.Stopped {
				u.hear(exit.Fact{ID: u.id, Code: a.st.Code, Measured: true, At: a.st.ExitedAt, Origin: exit.Task}, true)
				continue
			}
			answered = nil
			if errdefs.IsNotFound(a.err) && known.Origin != exit.Kernel {
				return known // containerd knows nothing and nobody else is to come
			}
		case <-more:
		case <-ctx.Done():
			return known
		}
	}
}

// endLeftovers kills what outlived the init process. With a PID namespace of its own the kernel
// did it already; in a shared one the rest of the group lives on.
func (c *Controller) endLeftovers(ctx context.Context, u *unit) {
	dir := u.process().Cgroup
	if !u.sharedPID() || dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeftoverTimeout)
	defer cancel()
	if err := c.cgroups.KillAll(ctx, dir); err != nil {
		c.obs.Event(u.id, "processes remain after the container's init ended", err)
	}
}

// oomKilled reads the verdict from the container's cgroup, which stands until the task is deleted:
// the kernel killed in it for want of memory, the container did not end well, and it was
// not berth that killed it.
func (c *Controller) oomKilled(u *unit, f exit.Fact) bool {
	if u.isSandbox() || !f.Measured && f.Origin == exit.Start || f.Measured && f.Code == 0 {
		return false
	}
	u.mu.Lock()
	byUs := u.mu.killed || u.mu.stopped && f.Signal() != 9
	u.mu.Unlock()
	if byUs {
		return false
	}
	dir := u.process().Cgroup
	if dir == "" {
		return false
	}
	n, err := c.cgroups.OOMKills(dir)
	if err != nil {
		c.obs.Event(u.id, "OOM verdict not available", err)
	}
	return n > 0
}

// drain waits, within its bound, until what the container wrote is in its log.
func (c *Controller) drain(ctx context.Context, u *unit) {
	s := u.stdio()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DrainTimeout)
	defer cancel()
	select {
	case <-s.Drained():
	case <-ctx.Done():
		c.obs.Event(u.id, "log still draining: something holds the container's output open", nil)
	}
}

// waitSettled waits for u's exit to be durable.
func (c *Controller) waitSettled(ctx context.Context, u *unit) error {
	select {
	case <-u.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s %s to end: %w", u.kind(), u.id, ctxError(ctx))
	}
}

// ctxError is ctx's end in errdefs' words.
func ctxError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}
