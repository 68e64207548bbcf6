// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/internal/base/lane"
	"berth/internal/base/ops"
)

// Step is one kind of attempt of a lane.
type Step string

// The steps of a lane.
const (
	StepUndoStart Step = "undo-start" // of a start that a kill of berth cut off
	StepSettle    Step = "settle"
	StepRelease   Step = "release"
	StepNotify    Step = "notify" // the hooks, of a settled exit
	StepUpdate    Step = "update" // of the resources of a container
	StepReap      Step = "reap"   // of an ID that has no unit
)

// Purpose distinguishes the lanes of one ID.
type Purpose string

const (
	// Life is the lane of everything that has to happen to a unit in order.
	Life Purpose = ""
	// Correction is the lane of exit codes that arrive after the exit was settled, so that a
	// correction does not wait behind a release that fails.
	Correction Purpose = "correction"
	// Hook is the lane of the hooks that are called after an exit was settled, so that a plug-in
	// that hangs holds up neither the release nor anything else.
	Hook Purpose = "hooks"
	// Change is the lane of changes to a container's resources, so that a shim that hangs in one
	// holds up nothing else.
	Change Purpose = "resources"
)

// LaneKey names a lane.
type LaneKey struct {
	ID      string
	Purpose Purpose
}

// String returns the whole ID, followed by the purpose if that is not the unit's life.
func (k LaneKey) String() string {
	if k.Purpose == Life {
		return k.ID
	}
	return k.ID + " (" + string(k.Purpose) + ")"
}

// lanes schedules the steps of units.
type lanes struct {
	runner *lane.Runner[LaneKey, Step]
	// relist asks for a comparison of everything with containerd before long.
	relist func()
}

func newLanes(cfg Config, attempt lane.Handler[LaneKey, Step], relist func(), obs lane.Observer[LaneKey]) *lanes {
	runner := lane.NewRunner(lane.Config{
		Backoff:     lane.Backoff{Min: cfg.BackoffMin, Max: cfg.BackoffMax, Factor: 2, Jitter: 0.1},
		Deadline:    cfg.AttemptTimeout,
		MaxDeadline: cfg.BackoffMax,
		Awaited:     longestAwaited,
		Rand:        cfg.Rand,
	}, attempt, obs)
	return &lanes{runner: runner, relist: relist}
}

// inTurn returns a handler that calls turn before and after each attempt; turn may be nil.
func inTurn(turn func(what string), attempt lane.Handler[LaneKey, Step]) lane.Handler[LaneKey, Step] {
	if turn == nil {
		return attempt
	}
	return func(ctx context.Context, a lane.Attempt[LaneKey, Step]) lane.Result {
		what := string(a.Item) + " " + a.Key.String()
		turn(what)
		defer turn("after " + what)
		return attempt(ctx, a)
	}
}

func (l *lanes) undoStart(u *unit) { l.runner.Offer(LaneKey{ID: u.id}, StepUndoStart) }
func (l *lanes) settle(u *unit)    { l.runner.Offer(LaneKey{ID: u.id}, StepSettle) }
func (l *lanes) correct(u *unit)   { l.runner.Offer(LaneKey{u.id, Correction}, StepSettle) }
func (l *lanes) release(u *unit)   { l.runner.Offer(LaneKey{ID: u.id}, StepRelease) }
func (l *lanes) notify(u *unit)    { l.runner.Offer(LaneKey{u.id, Hook}, StepNotify) }
func (l *lanes) update(u *unit)    { l.runner.Offer(LaneKey{u.id, Change}, StepUpdate) }
func (l *lanes) reap(id string)    { l.runner.Offer(LaneKey{ID: id}, StepReap) }

// settleAgain schedules another judgement of the end of u, whether it is settled already or not.
func (l *lanes) settleAgain(u *unit) {
	if u.now().Phase.Ended() {
		l.correct(u)
	} else {
		l.settle(u)
	}
}

// poke makes the lane of an ID retry now.
func (l *lanes) poke(id string) { l.runner.Poke(LaneKey{ID: id}) }

// longestAwaited bounds the wait before another attempt, while a caller waits for the outcome.
const longestAwaited = time.Second

// wait begins to wait for the life of u to go on: until it is settled, compared or removed, or has
// nothing to do. It is the only way to wait for that. A pending retry is made now, and meanwhile at
// least every second. End of the waiter must be called.
func (l *lanes) wait(u *unit) *lane.Waiter {
	w := l.runner.Wait(LaneKey{ID: u.id})
	if !u.compared.Happened() {
		l.relist()
	}
	return w
}

// waitUpdate begins to wait for the updates of u, in the same way as wait.
func (l *lanes) waitUpdate(u *unit) *lane.Waiter { return l.runner.Wait(LaneKey{u.id, Change}) }

// awaited reports whether a caller waits for the life of u to go on.
func (l *lanes) awaited(u *unit) bool { return l.runner.Awaited(LaneKey{ID: u.id}) }

// releaseNow schedules the release of u for a caller that needs it. The poke comes first: an
// attempt that begins because of the offer needs none, and would be made twice if it failed.
func (l *lanes) releaseNow(u *unit) {
	l.poke(u.id)
	l.hurry(u)
}

// hurry does the same for a caller that has begun to wait, which pokes the lane.
func (l *lanes) hurry(u *unit) {
	u.hurried.Happen()
	l.release(u)
}

// until waits as w for one of two events, of which the second may be nil, and returns why ctx ended
// if that is first. The text what names the event.
func until(ctx context.Context, w *lane.Waiter, what string, event, or *lane.Event) error {
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: what})
	defer op.End()
	var other <-chan struct{}
	if or != nil {
		other = or.Done(w)
	}
	select {
	case <-event.Done(w):
		return nil
	case <-other:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

// waitSettled waits as w for the exit of u to be durable and visible. A removed unit has ended,
// too: a container that is removed before it ran is not settled.
func waitSettled(ctx context.Context, w *lane.Waiter, u *unit) error {
	if err := until(ctx, w, "its end to be on record", &u.settled, &u.removed); err != nil {
		return fmt.Errorf("wait for %s %s to end: %w", u.kind(), u.id, err)
	}
	return nil
}

// waitRemoved hurries the release of u, and waits until its record is deleted. If ctx ends first,
// the error names the pending step.
func (l *lanes) waitRemoved(ctx context.Context, u *unit) error {
	w := l.wait(u)
	defer w.End()
	l.hurry(u)
	err := until(ctx, w, "the release of what was made for it", &u.removed, nil)
	if err == nil || u.removed.Happened() {
		return nil
	}
	what := strings.Join(u.now().Holds.Names(), ", ")
	err = fmt.Errorf("remove %s %s: still releasing %s; it goes on by itself, ask again: %w", u.kind(), u.id, what, err)
	if last := u.releaseError(); last != nil {
		err = fmt.Errorf("%w (last attempt: %w)", err, last)
	}
	return err
}

// waitCompared waits until it is known whether an earlier start of u took effect, or until u is
// removed.
func (l *lanes) waitCompared(ctx context.Context, u *unit) error {
	w := l.wait(u)
	defer w.End()
	if err := until(ctx, w, "containerd or its shim, which know whether an earlier start took effect", &u.compared, &u.removed); err != nil {
		return fmt.Errorf("whether an earlier start took effect is not known yet: containerd or the shim does not answer: %w", err)
	}
	return nil
}

// waitDisconnected hurries the release of the sandbox u, and waits until its network was given
// back, or u has nothing more to release.
func (l *lanes) waitDisconnected(ctx context.Context, u *unit) error {
	w := l.wait(u)
	defer w.End()
	l.hurry(u)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the release of its network", Then: "it goes on without the call"})
	defer op.End()
	idle := make(chan error, 1)
	go func() { idle <- w.Idle(ctx) }()
	select {
	case <-u.disconnected.Done(w):
		return nil
	case err := <-idle:
		return err
	}
}
