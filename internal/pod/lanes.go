// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"berth/internal/lane"
)

// Step is what a lane attempts.
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

// String is the whole ID, followed by the purpose if that is not the unit's life.
func (k LaneKey) String() string {
	if k.Purpose == Life {
		return k.ID
	}
	return k.ID + " (" + string(k.Purpose) + ")"
}

// lanes schedules the steps of units.
type lanes struct {
	runner *lane.Runner[LaneKey, Step]
}

func newLanes(cfg Config, attempt lane.Handler[LaneKey, Step], obs lane.Observer[LaneKey]) *lanes {
	return &lanes{lane.NewRunner(lane.Config{
		Backoff:     lane.Backoff{Min: cfg.BackoffMin, Max: cfg.BackoffMax, Factor: 2, Jitter: 0.1},
		Deadline:    cfg.AttemptTimeout,
		MaxDeadline: cfg.BackoffMax,
		Rand:        cfg.Rand,
	}, attempt, obs)}
}

func (l *lanes) undoStart(u *unit) { l.runner.Offer(LaneKey{ID: u.id}, StepUndoStart) }
func (l *lanes) settle(u *unit)    { l.runner.Offer(LaneKey{ID: u.id}, StepSettle) }
func (l *lanes) correct(u *unit)   { l.runner.Offer(LaneKey{u.id, Correction}, StepSettle) }
func (l *lanes) release(u *unit)   { l.runner.Offer(LaneKey{ID: u.id}, StepRelease) }
func (l *lanes) notify(u *unit)    { l.runner.Offer(LaneKey{u.id, Hook}, StepNotify) }
func (l *lanes) update(u *unit)    { l.runner.Offer(LaneKey{u.id, Change}, StepUpdate) }
func (l *lanes) reap(id string)    { l.runner.Offer(LaneKey{ID: id}, StepReap) }

// settleAgain has the end of u judged again, whether it is settled already or not.
func (l *lanes) settleAgain(u *unit) {
	if u.now().Phase.Ended() {
		l.correct(u)
	} else {
		l.settle(u)
	}
}

// poke has the lane of an ID try now what it would try later.
func (l *lanes) poke(id string) { l.runner.Poke(LaneKey{ID: id}) }

// updateNow schedules the update of u, for somebody who waits for it.
func (l *lanes) updateNow(u *unit) {
	l.update(u)
	l.runner.Poke(LaneKey{u.id, Change})
}

// releaseNow schedules the release of u, for somebody who waits for it.
func (l *lanes) releaseNow(u *unit) {
	u.hurry()
	l.release(u)
	l.poke(u.id)
}

// idle waits until the lane of an ID has nothing to do.
func (l *lanes) idle(ctx context.Context, id string) error {
	return l.runner.Idle(ctx, LaneKey{ID: id})
}
