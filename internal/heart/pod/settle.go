// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/heart/state"
)

const (
	// settleRetry is the longest wait between two attempts to settle.
	settleRetry = time.Second
	// measureTimeout bounds the wait for an exit code once the process is known to have ended.
	measureTimeout = 1500 * time.Millisecond
	// logTimeout bounds the wait for the log before an exit becomes visible.
	logTimeout = 250 * time.Millisecond
	// leftoverTimeout bounds the wait for processes that outlive init in a shared PID namespace.
	leftoverTimeout = time.Second
)

// settler turns facts into durable, visible state.
type settler struct {
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

// settle makes the witnesses' facts about u durable and visible, and hands over to the release. It
// is attempted by the unit's lane until it succeeds, and does nothing when nothing was reported.
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
	if !sure(u, known) {
		known = s.measure(ctx, u)
	}
	if known.At.IsZero() {
		known.At = u.evidence.noticedAt() // the best known instant
	}
	if u.sharesPIDs() {
		s.processes.endLeftovers(ctx, u)
		drained = s.drain(ctx, u)
	}
	if latest, _ := u.evidence.known(); latest.Rank() > known.Rank() {
		known, _ = exit.Merge(known, latest)
	}
	alone := contested(u, known)
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
			known.At = st.StartedAt // the shim stamps wall time, and the clock may have been set since
		}
		if st.Phase == state.Creating && known.Origin == exit.Start { // given up before it was visible
			st.Removing, st.Stopping, st.Undone = true, true, known.Message
		}
		st.Phase, st.Exit, st.TakingBack, st.Stop = u.endedPhase(), known, false, nil
		u.oom.record(st)
		return true
	}, drained)
	if err != nil || !settled {
		return err
	}
	s.obs.Note(u.id, event.ExitSettled{
		Exit:     event.ExitOf(known),
		Lag:      u.clock.Since(known.At),
		Evidence: u.oom.tell(u.evidence.told()),
	})
	if alone {
		s.obs.Note(u.id, event.CodeUnconfirmed{Code: known.Code})
	}
	s.noteContradiction(u, known)
	if u.now().Undone == "" {
		s.publisher.stopped(u)
		s.endings.notify(u)
	}
	if known.Signal() == int(unix.SIGKILL) && !known.OOM && !u.evidence.explains(known) && s.shims.ShimDied(ctx, u.pod.id) {
		s.obs.Note(u.id, event.ShimDied{})
	}
	s.lanes.release(u)
	return nil
}

// lastOOM reads the counter of OOM kills that could not be read when the exit was settled, before
// the group is removed. It returns an error if it still cannot be read, but not for long.
func (s *settler) lastOOM(u *unit) error {
	known := u.now().Exit
	if !u.oom.isUnread() || !known.Measured {
		return nil
	}
	if err := s.ooms.read(u, known); err != nil && u.clock.Since(known.At) < oomPatienceAfter {
		return fmt.Errorf("read the counter of OOM kills: %w", err)
	}
	u.oom.setUnread(false)
	return s.correct(u, s.ooms.judge(context.Background(), u, known)) // bounded
}

// correct records a better code that arrived after the exit was settled: a measured one after a
// guess, or the process's after its first thread's. That a code is confirmed is not worth a commit.
func (s *settler) correct(u *unit, known exit.Fact) error {
	changed := false
	err := u.change(func(st *state.Status) bool {
		merged, _ := exit.Merge(st.Exit, known)
		if changed = merged.Amends(st.Exit); changed {
			st.Exit = merged
		}
		return changed
	})
	if err != nil {
		return err
	}
	s.noteContradiction(u, u.now().Exit)
	if !changed {
		return nil
	}
	s.obs.Note(u.id, event.ExitCorrected{
		Exit:     event.ExitOf(u.now().Exit),
		Evidence: u.oom.tell(u.evidence.told()),
	})
	s.publisher.stoppedAgain(u)
	return nil
}

// noteContradiction notes that two witnesses have measured different codes of the end of u, of
// which one stands.
func (s *settler) noteContradiction(u *unit, stands exit.Fact) {
	other, differ := u.evidence.contradiction()
	switch {
	case !differ:
	case other.FirstThread:
		s.obs.Note(u.id, event.FirstThreadDiffers{
			Code:    stands.Code,
			Witness: stands.Origin,
			First:   other.Code,
		})
	default:
		s.obs.Note(u.id, event.CodesDiffer{
			Code:         stands.Code,
			Witness:      stands.Origin,
			Other:        other.Code,
			OtherWitness: other.Origin,
		})
	}
}

// contested reports whether the code known for u may be that of a first thread after reboot(2),
// because a process that may call it was in the PID namespace of u. The thread that called it ends
// with 0, and the init of the namespace, if that is another process or thread, by SIGKILL. The
// parent gets SIGHUP or SIGINT then. With any other code, and without the capability, the pidfd's
// code is enough; if another one follows all the same, it is corrected.
func contested(u *unit, known exit.Fact) bool {
	return known.Rank() == exit.OfThread && (known.Code == 0 || known.Signal() == int(unix.SIGKILL)) && u.mayBeRebooted()
}

// sure reports whether the facts suffice to settle an exit.
func sure(u *unit, known exit.Fact) bool {
	return known.Measured && !known.At.IsZero() && !contested(u, known)
}

// measure waits, within its bound, for a witness that knows the code and the instant: the kernel
// after the process was reaped, the shim's event, the shim's answer to a question. A code that is
// contested is taken once the shim, which has reaped the process, has told its own. It returns the
// facts known then, measured or not.
func (s *settler) measure(ctx context.Context, u *unit) exit.Fact {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
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
		if sure(u, known) {
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
				return known // containerd knows nothing and no other witness remains
			}
		case <-more:
		case <-ctx.Done():
			return known
		}
	}
}

// drain begins to wait, within its bound, until the container's output is in its log, and returns
// the wait for that.
func (s *settler) drain(ctx context.Context, u *unit) (wait func()) {
	stdio := u.stdio()
	if stdio == nil {
		return nil
	}
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
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
