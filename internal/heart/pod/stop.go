// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/base/ops"
	"berth/internal/heart/state"
)

// errStopRequested ends a creation or a start in flight.
var errStopRequested = fmt.Errorf("a stop was asked for meanwhile: %w", errdefs.ErrFailedPrecondition)

// stopper ends the processes of units.
type stopper struct {
	ops         *operations
	grace       time.Duration // for a start in flight
	networkWait time.Duration // for the network to be given back
	processes   *processes
	witnesses   *witnesses
	lanes       *lanes
	orphans     *orphans
	obs         Observer
	shutDown    atomic.Bool // the machine is being shut down
}

// stopPod ends every process of the pod of a sandbox, and waits within a bound until its network
// was given back. It does not wait for the rest of the release: a shim may hang.
func (s *stopper) stopPod(ctx context.Context, u *unit) error {
	if !u.visible() {
		return fmt.Errorf("stop sandbox %s: it is still being made: %w", u.id, errdefs.ErrFailedPrecondition)
	}
	if err := u.changeFor(ctx, func(st *state.Status) bool {
		changed := !st.Stopping
		st.Stopping = true
		return changed
	}); err != nil {
		return absent(err)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, ct := range u.containers() {
		g.Go(func() error { return guard(func() error { return s.stop(gctx, ct, 0) }) })
	}
	g.Go(func() error { return guard(func() error { return s.orphans.stopMembers(gctx, u.id) }) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", u.id, err)
	}
	if err := s.stop(ctx, u, 0); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", u.id, err)
	}
	wait, cancel := context.WithTimeout(ctx, s.networkWait)
	defer cancel()
	// a release that fails until then is retried; the record has it
	_ = s.lanes.waitDisconnected(wait, u)
	return nil
}

// stop ends the process of u and waits until its exit is settled. Several may stop at the same
// time: each has its own timeout, and the shortest kills.
func (s *stopper) stop(ctx context.Context, u *unit, timeout time.Duration) error {
	switch st := u.now(); {
	case st.Phase.Ended():
		s.lanes.poke(u.id)
		return nil
	case st.Phase == state.Creating:
		// A stopping sandbox starts nothing, so there is no need to wait for the undoing.
		u.interrupt(errStopRequested)
		return nil
	case st.Phase == state.Created:
		return s.stopUnstarted(ctx, u, timeout)
	}
	s.obs.Note(u.id, event.StopRequested{
		By:       event.ClientOf(ctx),
		Pod:      u.pod.now().Stopping,
		Shutdown: s.shutDown.Load(),
		Timeout:  timeout,
	})
	ctx, op := ops.Begin(ctx, ops.Work{Kind: ops.Stop, Of: u.object()})
	defer op.End()
	defer u.stops.begin()()
	asked, err := s.record(ctx, u, timeout)
	if err != nil {
		return err
	}
	return s.end(ctx, u, asked)
}

// recordPatience is how long a stop waits until it is on record. A disk that does not answer, or
// takes nothing, keeps it from that, and from nothing else.
const recordPatience = time.Second

// record records a stop of u, or joins the one on record, of which the earlier deadline counts, and
// returns the stop to carry out. The stop of a pod and a removal are on record already, and a kill
// that follows at once needs none. The error says that berth is being stopped.
func (s *stopper) record(ctx context.Context, u *unit, timeout time.Duration) (state.Stop, error) {
	now := u.clock.Now()
	asked := state.Stop{At: now, Until: now.Add(timeout)}
	if timeout <= 0 || u.now().Removing || u.pod.now().Stopping {
		return asked, nil
	}
	written := s.write(u, func(st *state.Status) bool {
		if st.Phase.Ended() || st.Stop != nil && !asked.Until.Before(st.Stop.Until) {
			return false
		}
		next := asked
		if st.Stop != nil {
			next.At, next.Sent = st.Stop.At, st.Stop.Sent
		}
		st.Stop = &next
		return true
	})
	select {
	case <-written:
	case <-ctx.Done():
	}
	if s.ops.stopping() {
		return asked, errStopping
	}
	if known := u.now().Stop; known != nil {
		asked.Sent, asked.Until = known.Sent, clock.Earlier(asked.Until, known.Until)
	}
	return asked, nil
}

// write changes the record of u, and returns a channel that is closed once that is done, or takes
// too long.
func (s *stopper) write(u *unit, edit func(*state.Status) bool) <-chan struct{} {
	ctx, cancel := context.WithTimeout(s.ops.life, recordPatience)
	if !s.ops.spawn(func() {
		defer cancel()
		_ = u.changeFor(ctx, edit)
	}) {
		cancel() // berth is being stopped
	}
	return ctx.Done()
}

// goOn carries out the stop of u that is on record, whose call is gone. If its signal may not have
// been sent, it begins again.
func (s *stopper) goOn(ctx context.Context, u *unit) error {
	defer u.stops.begin()()
	stop := u.now().Stop
	if stop == nil {
		return nil // it has ended
	}
	again, now := *stop, u.clock.Now()
	if stop.Sent.IsZero() {
		again.Until = now.Add(stop.Until.Sub(stop.At))
	}
	if u.stops.cutOff() {
		s.obs.Note(u.id, event.StopGoesOn{Left: max(0, again.Until.Sub(now))})
	}
	return s.end(ctx, u, again)
}

// end sends the stop signal to the process of u, unless it was sent, and SIGKILL at the deadline.
// It waits until its exit is settled.
func (s *stopper) end(ctx context.Context, u *unit, stop state.Stop) error {
	w := s.lanes.wait(u) // a settle that failed is tried now
	defer w.End()
	if stop.Until.After(stop.At) {
		var err error
		if stop.Sent.IsZero() {
			err = s.signal(ctx, u, signalNumber(u), u.evidence.stop)
		}
		if absent(err) != nil {
			s.obs.Note(u.id, event.StopSignalLost{Err: err.Error()})
		} else if err := s.waitSignalled(ctx, w, u, stop); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if err := s.kill(ctx, u); err != nil {
		return err
	}
	return s.waitKilled(ctx, w, u)
}

// soon is how long a process may take to end before it is recorded that its signal was sent. Most
// have ended by then, and their end does not wait for that record.
const soon = 100 * time.Millisecond

// waitSignalled waits as w until the exit of u, to which the stop signal was sent, is settled, at
// most until the deadline.
func (s *stopper) waitSignalled(ctx context.Context, w *lane.Waiter, u *unit, stop state.Stop) error {
	wait, cancel := context.WithTimeout(ctx, stop.Until.Sub(u.clock.Now()))
	defer cancel()
	wait, op := ops.Begin(wait, ops.Work{Kind: ops.Signal, What: signalName(signalNumber(u)), Then: "SIGKILL"})
	defer op.End()
	if stop.Sent.IsZero() {
		stop.Sent = u.clock.Now()
		short, cancel := context.WithTimeout(wait, soon)
		err := waitSettled(short, w, u)
		cancel()
		if err == nil {
			return nil
		}
		s.write(u, func(st *state.Status) bool {
			if st.Stop == nil || !st.Stop.Sent.IsZero() {
				return false
			}
			st.Stop = &state.Stop{At: st.Stop.At, Until: stop.Until, Sent: stop.Sent}
			return true
		})
	}
	return waitSettled(wait, w, u)
}

// waitKilled waits as w for the exit of u, which was killed, to be settled, and insists on its end
// meanwhile. If its process does not end, waitKilled returns why, within [heldPatience] and before
// the caller goes away. The settle of an exit is waited for as long as the caller likes.
func (s *stopper) waitKilled(ctx context.Context, w *lane.Waiter, u *unit) error {
	settled := func(ctx context.Context) error { return waitSettled(ctx, w, u) }
	if u.isPinned() { // it has no process
		return settled(ctx)
	}
	patience := heldPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)-lastWord)
	}
	wait, cancel := context.WithTimeout(ctx, max(patience, 0))
	defer cancel()
	wait, op := ops.Begin(wait, ops.Work{Kind: ops.Signal, What: "SIGKILL", Then: "the call ends with the reason"})
	defer op.End()
	err := s.processes.insisting(wait, u, settled)
	if err != nil && ctx.Err() == nil && u.evidence.hasEnded() {
		err = settled(ctx)
	}
	return heldError(u, err)
}

// lastWord is how long before a caller's deadline it is told the cause of the delay.
const lastWord = 200 * time.Millisecond

// stopUnstarted waits for a start in flight, interrupts it if it takes long, and ends its process.
func (s *stopper) stopUnstarted(ctx context.Context, u *unit, timeout time.Duration) error {
	patience := time.AfterFunc(s.grace, func() { u.interrupt(errStopRequested) })
	defer patience.Stop()
	if err := u.task.lock(ctx); err != nil {
		return fmt.Errorf("stop %s %s: an operation on its task is in flight: %w", u.kind(), u.id, err)
	}
	u.task.unlock()
	w := s.lanes.wait(u)
	defer w.End()
	if u.attempt().at == stageGivenUp {
		return s.waitKilled(ctx, w, u) // its start failed, and the settle ends the remains
	}
	if u.runs() {
		return s.stop(ctx, u, timeout)
	}
	if !u.compared.Happened() && u.process().Pid != 0 {
		// A start was cut off and may have taken effect. Only the shim knows, which does not
		// answer.
		u.evidence.mayHaveRun(true)
		u.giveUp(errStopRequested)
		s.lanes.settle(u)
		return s.waitKilled(ctx, w, u)
	}
	return nil
}

// kill ends the process of u, and notes that berth killed it unless the process had ended before,
// so that the OOM killer is not blamed.
func (s *stopper) kill(ctx context.Context, u *unit) error {
	if s.processes.ended(u) {
		return nil
	}
	err := s.signal(ctx, u, unix.SIGKILL, u.evidence.kill)
	if absent(err) != nil {
		return fmt.Errorf("kill %s %s: %w", u.kind(), u.id, err)
	}
	return nil
}

// signal sends a signal to the process of u; ErrNotFound when it ended. A process of which neither
// the kernel nor containerd knows is reported as ended, because no witness will do that. The signal
// is counted if it may explain the end.
func (s *stopper) signal(ctx context.Context, u *unit, sig unix.Signal, counted func(func() error) error) error {
	send := func() error { return s.processes.signal(ctx, u, sig) }
	var err error
	if s.processes.observe(u) == processGone {
		err = send() // it ended before; only ask whether it is known
	} else if err = counted(send); err != nil {
		s.lanes.settleAgain(u) // its end may have been settled while the signal counted
	}
	if errors.Is(err, errNoProcess) {
		s.witnesses.report(exit.Fact{ID: u.id, Origin: exit.Audit, Message: "its task was gone when it was to be stopped"})
	}
	if err == nil && u.isPinned() {
		s.witnesses.ask(ctx, u) // it has ended by now, and no other witness waits for that
	}
	return err
}

func signalNumber(u *unit) unix.Signal {
	if u.isSandbox() {
		return unix.SIGTERM
	}
	if s, err := parseSignal(u.container.StopSignal); err == nil {
		return s
	}
	return unix.SIGTERM
}
