// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
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
	StepReap    Step = "reap" // of an ID that has no unit
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
		switch c.seeProcess(u) {
		case processAlive, processUnseen: // should it have ended all the same, the audit will find it
			c.obs.Event(f.ID, "exit doubted: the kernel does not say that the process ended", nil, "told", f.String())
			return
		case processGone:
			if _, hint = c.kernel.Look(f.ID); hint {
				// The kernel's own fact is on its way or here. Should it have been lost, this offer is what
				// settles the exit.
				u.hear(exit.Fact{ID: f.ID, At: f.At, Origin: exit.Kernel}, false)
			}
		case processUnknown:
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

// OOMKilled takes containerd's word that the kernel killed in a container for want of memory. It counts where berth
// cannot read the container's cgroup itself: in a VM.
func (c *Controller) OOMKilled(id string) {
	u, ok := c.unit(id)
	if !ok {
		return
	}
	c.obs.Event(id, "containerd reports an OOM kill", nil)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.oomTold = true
}

// attempt is what the lanes run.
func (c *Controller) attempt(ctx context.Context, a lane.Attempt[Step]) lane.Result {
	u, ok := c.unit(strings.TrimSuffix(a.ID, late))
	if !ok && a.Item != StepReap {
		return lane.Done()
	}
	var err error
	switch a.Item {
	case StepSettle:
		err = c.settle(ctx, u)
	case StepRelease:
		err = c.release(ctx, u)
	case StepReap:
		err = c.reap(ctx, a.ID)
	}
	if err != nil {
		c.obs.Event(a.ID, string(a.Item)+" attempt ended with an error", err, "attempt", a.N)
		return lane.Retry(err)
	}
	return lane.Done()
}

// settle turns what was heard into durable, visible state, and hands over to release.
func (c *Controller) settle(ctx context.Context, u *unit) error {
	if u.givenUp() {
		if err := c.endUnstarted(ctx, u); err != nil {
			return err
		}
	}
	known, _ := u.heard()
	if known.Zero() {
		return nil
	}
	if st := u.now(); st.Phase.Ended() {
		return c.improve(u, known)
	}
	if !known.Measured || known.At.IsZero() {
		known = c.measure(ctx, u)
	}
	if known.At.IsZero() {
		known.At = u.noticed() // nobody knows better
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
	if u.now().Undone == "" {
		c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	c.lanes.Offer(u.id, StepRelease)
	return nil
}

// endUnstarted ends what was made for a start that was given up, so that the container is not EXITED while its program
// may run after all: the answer to a start can be lost.
func (c *Controller) endUnstarted(ctx context.Context, u *unit) error {
	switch c.seeProcess(u) {
	case processAlive:
		if err := c.kernel.Signal(u.id, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
		return nil // its end is on its way here
	case processUnseen:
		return fmt.Errorf("end what was made for the start of %s: the kernel cannot watch it", u.id)
	case processUnknown:
		if u.process().Pid == 0 {
			break // none was made, or none that could have been started
		}
		err := c.killBody(ctx, u, unix.SIGKILL) // of a VM
		if err == nil {
			_, err = c.waitBody(ctx, u)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
	case processGone:
	}
	if known, _ := u.heard(); known.Zero() {
		u.hear(exit.NotStarted(u.id, time.Now(), "it was not started"), false)
	}
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

// measure waits, within its bound, for somebody who knows the code and the instant: the kernel after the
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
		st, err := c.waitBody(ctx, u) // the shim may be about to learn it
		answered <- answer{st, err}
	})
	for {
		known, more := u.heard()
		if known.Measured && !known.At.IsZero() {
			return known
		}
		select {
		case a := <-answered:
			if a.err == nil && a.st.Stopped {
				u.hear(exit.Fact{ID: u.id, Code: a.st.Code, Measured: true, At: a.st.ExitedAt, Origin: exit.Task}, true)
				continue
			}
			answered = nil
			if errdefs.IsNotFound(a.err) && (known.Measured || known.Origin != exit.Kernel) {
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
// the kernel killed in it for want of memory, and it was not berth that killed it. What it means for a container that
// ended well, or with an unknown code, is exit's to say.
func (c *Controller) oomKilled(u *unit, f exit.Fact) bool {
	if u.isSandbox() || f.Origin == exit.Start {
		return false
	}
	u.mu.Lock()
	byUs, told := u.mu.killed || u.mu.stopped && f.Signal() != 9, u.mu.oomTold
	u.mu.Unlock()
	if byUs {
		return false
	}
	dir := u.process().Cgroup
	if dir == "" {
		return told
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
	if err := s.Drain(ctx); err != nil {
		c.obs.Event(u.id, "log still draining", err)
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
