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
		if err := s.endAbandoned(ctx, u); err != nil {
			return err
		}
	}
	known, _ := u.evidence.known()
	if known.Zero() {
		return nil
	}
	if u.now().Phase.Ended() {
		return s.correct(u, s.withOOM(ctx, u, known))
	}
	var drained func()
	if !u.sharesPIDs() { // its other processes have ended with init
		drained = s.drain(ctx, u)
	}
	s.countOOM(ctx, u, known)
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
	known = s.withOOM(ctx, u, known)
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

const (
	// oomPatience is how long an exit waits for a counter of OOM kills that cannot be read, and
	// oomPatienceAfter for how long after the exit its release does, before the group is removed.
	oomPatience      = 300 * time.Millisecond
	oomPatienceAfter = 10 * time.Second
)

// countOOM reads the counter of OOM kills of a container that has ended. One that cannot be read is
// tried again within a bound, and once more before the group is removed.
func (s *settler) countOOM(ctx context.Context, u *unit, known exit.Fact) {
	ctx, cancel := context.WithTimeout(ctx, oomPatience)
	defer cancel()
	for {
		err := s.ooms.read(u, known)
		u.oom.setUnread(err != nil)
		if err == nil {
			return
		}
		again := time.NewTimer(oomPatience / 10)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			s.obs.Note(u.id, event.OOMCounterUnread{Err: err.Error()})
			return
		}
	}
}

// lastOOM reads the counter of OOM kills that could not be read when the exit was settled, before the
// group is removed. An error says that it still cannot be read, and is not returned for long.
func (s *settler) lastOOM(u *unit) error {
	known := u.now().Exit
	if !u.oom.isUnread() || !known.Measured {
		return nil
	}
	if err := s.ooms.read(u, known); err != nil && time.Since(known.At) < oomPatienceAfter {
		return fmt.Errorf("read the counter of OOM kills: %w", err)
	}
	u.oom.setUnread(false)
	return s.correct(u, s.withOOM(context.Background(), u, known)) // bounded
}

// withOOM returns a fact with the verdict on whether the OOM killer ended the container. While a
// signal of berth's own is on its way, which may or may not explain the end, it waits within a
// bound.
func (s *settler) withOOM(ctx context.Context, u *unit, known exit.Fact) exit.Fact {
	if u.isSandbox() || known.Origin == exit.Start || known.OOM {
		return known
	}
	if known.At.IsZero() {
		known.At = u.now().Exit.At // it is settled, and only its reason may be corrected
	}
	killed, limit := u.oom.verdict(known)
	if !killed {
		return known
	}
	if sent := u.evidence.contested(); sent != nil {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.MeasureTimeout)
		select {
		case <-sent:
		case <-ctx.Done():
		}
		cancel()
	}
	if !u.evidence.explains(known) {
		known.OOM, known.Limit = true, limit
	}
	return known
}

// endAbandoned ends what was made for a start that was given up, so that the container is not
// EXITED while its program may run after all: the answer to a start can be lost.
func (s *settler) endAbandoned(ctx context.Context, u *unit) error {
	switch s.processes.observe(u) {
	case processAlive:
		if err := s.markUnstarted(ctx, u); err != nil {
			return err
		}
		err := u.evidence.kill(func() error { return s.processes.kernel.Signal(u.id, unix.SIGKILL) })
		if absent(err) != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
		return nil // the fact of its end is on its way here
	case processUnreachable:
		if st, err := u.workload.State(ctx); err != nil || !st.Stopped {
			return fmt.Errorf("end what was made for the start of %s: neither the kernel nor its shim can say whether it lives", u.id)
		}
		if err := s.askShim(ctx, u); err != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
	case processUnknown:
		if u.now().Restoring != "" {
			if err := s.endAbandonedRestore(ctx, u); err != nil {
				return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
			}
			break
		}
		if u.process().Pid == 0 {
			break // none was made, or none that could have been started
		}
		// It is in a virtual machine. ErrNotFound says that it has ended, maybe by itself.
		if err := s.markUnstarted(ctx, u); err != nil {
			return err
		}
		err := absent(u.workload.Kill(ctx, unix.SIGKILL))
		if err == nil {
			err = absent(s.askShim(ctx, u))
		}
		if err != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
	case processGone:
		if u.now().TakingBack {
			break // berth has killed it, before it ran
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.MeasureTimeout)
		defer cancel()
		if absent(s.askShim(ctx, u)) != nil && u.evidence.endedAlone() {
			u.evidence.add(exit.Fact{
				ID:      u.id,
				Origin:  exit.Audit,
				Message: "its start was cut off, its process has ended, and its shim did not say how",
			}, false)
		}
	}
	if known, _ := u.evidence.known(); known.Zero() {
		u.evidence.add(exit.NotStarted(u.id, time.Now(), "it was not started"), false)
	}
	return nil
}

// endAbandonedRestore ends what the restore of u has made, when the start was given up. It is an
// error as long as the shim may be at work on it, or its process lives. Where the shim is gone and
// there is nothing to end, the program may have run and ended: nobody can know.
func (s *settler) endAbandonedRestore(ctx context.Context, u *unit) error {
	var err error
	_ = u.evidence.kill(func() error {
		var found bool
		if found, err = s.processes.endRestored(ctx, u); !found {
			return errNoProcess // nothing was killed that this would explain
		}
		return nil
	})
	if err != nil {
		return err
	}
	st, err := u.workload.State(ctx)
	switch {
	case errdefs.IsNotFound(err):
		if u.now().Restoring != "" && u.evidence.endedAlone() {
			u.evidence.add(exit.Fact{
				ID:      u.id,
				Origin:  exit.Audit,
				Message: "its restore was cut off and its shim is gone: whether it ran is not known",
			}, false)
		}
		return nil
	case err != nil:
		return err
	case st.Stopped:
		return absent(s.askShim(ctx, u))
	case st.Running:
		return fmt.Errorf("its process %d has not ended yet", st.Pid)
	}
	return nil
}

// markTimeout bounds the question whether the program has run: a stop may wait for the kill.
const markTimeout = 300 * time.Millisecond

// markUnstarted records that the process of u, which is about to be killed, has not run the program,
// if the shim says so: should berth be killed as well, the next one does not take its end for an exit.
func (s *settler) markUnstarted(ctx context.Context, u *unit) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if st, err := u.workload.State(ctx); err != nil || st.Running || st.Stopped {
		return nil
	}
	return u.markTakingBack()
}

// askShim asks the shim how the process of a start that was given up ended, unless a witness has
// reported the code: the start may have taken effect, and the program ended by itself.
func (s *settler) askShim(ctx context.Context, u *unit) error {
	if u.evidence.measured() {
		return nil
	}
	st, err := u.workload.Wait(ctx)
	if err == nil && st.Stopped {
		u.evidence.add(taskFact(u.id, st), false)
	}
	return err
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
