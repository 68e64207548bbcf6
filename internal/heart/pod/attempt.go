// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	"berth/internal/heart/state"
)

// attempt is the start of one container: how far it has come, and how it goes on. It is pure, and
// the same is read from a record. [attempt.move] is the only way from one stage to the next.
//
//	none ──▶ making ──┬─────────────────▶ made ──▶ started
//	 ▲          │     └──▶ restoring ─────▲ │
//	 │          │              │            │
//	 │          └──────────────┴─────┬──────┘
//	 │                               ├── it failed ────────▶ given up ──▶ the container is EXITED
//	 │                               └── berth was killed ─┐
//	 └──── taking back ◀──── cut off ◀─────────────────────┘
//
// If berth is killed, the next one finds the stage in the record, and compares it with the outside:
// [decide] determines whether the program may have run. If it has not, the start is cut off, and is
// taken back, so that the container can be started again. If it runs, the start is adopted from any
// stage, and counts as started, too.
type attempt struct {
	at stage
	// again is set if an earlier start was taken back: the shim may still be at work on that one.
	again bool
	// spare is set if there may be a view that was made to renew the writable layer.
	spare bool
}

// stage is how far an attempt has come.
type stage string

const (
	// stageNone: nothing belongs to a start.
	stageNone stage = "none"
	// stageMaking: the stdio and the task are being made.
	stageMaking stage = "making"
	// stageRestoring: the shim may have been asked to restore a process that is not on record.
	stageRestoring stage = "restoring"
	// stageMade: the process is on record, and the shim may have been asked to start it.
	stageMade stage = "made"
	// stageStarted: it is on record that the program runs, or ran.
	stageStarted stage = "started"
	// stageCutOff: the program has not run, and the start is to be undone.
	stageCutOff stage = "cut off"
	// stageTakingBack: the undoing is on record, and in progress.
	stageTakingBack stage = "taking back"
	// stageGivenUp: the start failed, and the settle ends its remains.
	stageGivenUp stage = "given up"
)

// moves are the stages that follow each stage. A start may begin anew wherever nothing has come of
// the one before. A start that is not taken back after all goes on at the stage in the record.
var moves = map[stage][]stage{
	stageNone:      {stageMaking, stageStarted, stageCutOff, stageGivenUp},
	stageMaking:    {stageRestoring, stageMade, stageStarted, stageCutOff, stageGivenUp},
	stageRestoring: {stageMaking, stageMade, stageStarted, stageCutOff, stageGivenUp},
	stageMade:      {stageMaking, stageStarted, stageCutOff, stageGivenUp},
	stageStarted:   {stageGivenUp}, // by a panic in a later step
	stageCutOff: {
		stageTakingBack, stageNone, stageMaking, stageRestoring, stageMade, stageStarted, stageGivenUp,
	},
	stageTakingBack: {
		stageNone, stageMaking, stageRestoring, stageMade, stageStarted, stageGivenUp,
	},
	stageGivenUp: {},
}

// move returns a at the next stage. A stage that does not follow leaves a as it is: a start that
// was given up stays so, although its goroutine may still be at work.
func (a attempt) move(to stage) attempt {
	if !slices.Contains(moves[a.at], to) {
		return a
	}
	a.again = a.again || a.at == stageTakingBack && to == stageNone
	a.at = to
	return a
}

// inFlight reports whether a start is at work, once the unit was compared with containerd: before
// that, an earlier berth may have left it there.
func (a attempt) inFlight() bool {
	return a.at == stageMaking || a.at == stageRestoring || a.at == stageMade
}

// undone reports whether the end of the process is not an exit of the container, because the
// program has not run and the start is being undone.
func (a attempt) undone() bool { return a.at == stageCutOff || a.at == stageTakingBack }

// recorded returns the stage in a record. begun is set if a start has left stdio.
func recorded(st *state.Status, begun bool) stage {
	if st.Phase == state.Created && st.TakingBack {
		return stageTakingBack
	}
	return reached(st, begun)
}

// reached returns how far a start has come by its record, whether it is being taken back or not.
func reached(st *state.Status, begun bool) stage {
	switch {
	case st.Phase == state.Creating:
		return stageNone
	case st.Phase != state.Created:
		return stageStarted
	case st.Process.Pid != 0:
		return stageMade
	case st.Restoring != "":
		return stageRestoring
	case begun:
		return stageMaking
	default:
		return stageNone
	}
}

// found returns the stage of a start without a goroutine, as a comparison found it. ran is set if
// the program is known to have ended by itself, so that nothing is taken back any more.
func (a attempt) found(st *state.Status, begun, ran bool) stage {
	switch {
	case a.at == stageGivenUp:
		return stageGivenUp
	case ran:
		return reached(st, begun)
	default:
		return recorded(st, begun)
	}
}
