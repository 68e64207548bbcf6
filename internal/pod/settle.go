// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/event"
	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/state"
)

// settler turns facts into durable, visible state.
type settler struct {
	cfg       Config
	processes *processes
	ooms      *oomReader
	givenUp   *givenUp
	shims     Shims
	lanes     *lanes
	pacer     *lane.Pacer
	ops       *operations
	publisher *publisher
	endings   *endings
	obs       Observer
}

// settle makes what the witnesses reported about u durable and visible, and hands over to the
// release. It is attempted by the unit's lane until it succeeds, and does nothing when nothing was
// reported.
func (s *settler) settle(ctx context.Context, u *unit) error {
	defer s.pacer.Settle(u.id)()
	if u.attempt().at == stageGivenUp && !u.now().Phase.Ended() {
		if err := s.givenUp.end(ctx, u); err != nil {
			return err
		}
	}
	known, _ := u.evidence.known()
	if known.Zero() {
		return nil
	}
	if u.now().Phase.Ended() {
		return s.correct(u, s.ooms.judge(ctx, u, known))
	}
	var drained func()
	if !u.sharesPIDs() { // its other processes have ended with init
		drained = s.drain(ctx, u)
	}
	s.ooms.readAtEnd(ctx, u, known)
	if !known.Measured || known.At.IsZero() {
		known = s.measure(ctx, u)
	}
	if known.At.IsZero() {
		known.At = u.evidence.noticedAt() // nobody knows better
	}
	if u.sharesPIDs() {
		s.processes.endLeftovers(ctx, u, s.cfg.LeftoverTimeout)
		drained = s.drain(ctx, u)
	}
	known = s.ooms.judge(ctx, u, known)
	settled := false
	err := u.changeAfter(func(st *state.Status) bool {
		if settled = !st.Phase.Ended(); !settled {
			return false
		}
		if st.StartedAt.IsZero() && known.Origin != exit.Start {
			st.StartedAt = known.At // it ended before the call that started it returned
		}
		if known.At.Before(st.StartedAt) {
			known.At = st.StartedAt // the shim's clock and ours are read at different moments
		}
		if st.Phase == state.Creating && known.Origin == exit.Start { // given up before anybody saw it
			st.Removing, st.Stopping, st.Undone = true, true, known.Message
		}
		st.Phase, st.Exit, st.TakingBack = u.endedPhase(), known, false
		u.oom.record(st)
		return true
	}, drained)
	if err != nil || !settled {
		return err
	}
	s.obs.Note(u.id, event.ExitSettled{
		Exit:     event.ExitOf(known),
		Lag:      time.Since(known.At),
		Evidence: u.oom.tell(u.evidence.told()),
	})
	if known.Signal() == int(unix.SIGKILL) && !known.OOM && !u.evidence.explains(known) && s.shims.ShimDied(u.pod.id) {
		s.obs.Note(u.id, event.ShimDied{})
	}
	if u.now().Undone == "" {
		s.publisher.stopped(u)
		s.endings.notify(u)
	}
	s.lanes.release(u)
	return nil
}

// lastOOM reads the counter of OOM kills that could not be read when the exit was settled, before
// the group is removed. An error says that it still cannot be read, and is not returned for long.
func (s *settler) lastOOM(u *unit) error {
	known := u.now().Exit
	if !u.oom.isUnread() || !known.Measured {
		return nil
	}
	if err := s.ooms.read(u, known); err != nil && time.Since(known.At) < oomPatienceAfter {
		return fmt.Errorf("read the counter of OOM kills: %w", err)
	}
	u.oom.setUnread(false)
	return s.correct(u, s.ooms.judge(context.Background(), u, known)) // bounded
}

// correct records a measured code that arrived after a guess was settled.
func (s *settler) correct(u *unit, known exit.Fact) error {
	changed := false
	err := u.change(func(st *state.Status) bool {
		st.Exit, changed = exit.Merge(st.Exit, known)
		return changed
	})
	if err != nil || !changed {
		return err
	}
	s.obs.Note(u.id, event.ExitCorrected{
		Exit:     event.ExitOf(u.now().Exit),
		Evidence: u.oom.tell(u.evidence.told()),
	})
	s.publisher.stoppedAgain(u)
	return nil
}

// measure waits, within its bound, for somebody who knows the code and the instant: the kernel
// after the process was reaped, the shim's event, the shim's answer to a question. It returns what
// is known then, measured or not.
func (s *settler) measure(ctx context.Context, u *unit) exit.Fact {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.MeasureTimeout)
	defer cancel()
	type answer struct {
		st  TaskState
		err error
	}
	answered := make(chan answer, 1)
	s.ops.spawn(func() {
		st, err := u.workload.Wait(ctx) // the shim may be about to learn it
		answered <- answer{st, err}
	})
	for {
		known, more := u.evidence.known()
		if known.Measured && !known.At.IsZero() {
			return known
		}
		select {
		case a := <-answered:
			if a.err == nil && a.st.Stopped {
				u.evidence.add(taskFact(u.id, a.st), true)
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

// drain begins to wait, within its bound, until what the container wrote is in its log, and returns
// the wait for that.
func (s *settler) drain(ctx context.Context, u *unit) (wait func()) {
	stdio := u.stdio()
	if stdio == nil {
		return nil
	}
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	go func() {
		defer cancel()
		drained <- stdio.Drain(ctx)
	}()
	return func() {
		if err := <-drained; err != nil {
			s.obs.Note(u.id, event.LogDraining{Err: err.Error()})
		}
	}
}
