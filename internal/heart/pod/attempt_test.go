// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"testing"

	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

var allStages = []stage{stageNone, stageMaking, stageRestoring, stageMade, stageStarted, stageCutOff, stageTakingBack, stageGivenUp}

func TestAnAttemptMovesAsItIsDrawn(t *testing.T) {
	for _, to := range [][]stage{
		{stageMaking, stageMade, stageStarted},
		{stageMaking, stageRestoring, stageMade, stageStarted},
		{stageMaking, stageRestoring, stageStarted}, // what was restored has ended before it was on record
		{stageMaking, stageGivenUp},
		{stageMaking, stageMade, stageGivenUp},
		{stageMaking, stageRestoring, stageGivenUp},
		{stageMaking, stageMade, stageStarted, stageGivenUp},
		{stageStarted},              // a start of an earlier berth, carried out late
		{stageMaking, stageStarted}, // as it is adopted
		{stageCutOff, stageTakingBack, stageNone, stageMaking, stageMade, stageStarted},
		{stageMaking, stageMade, stageCutOff, stageTakingBack, stageNone},
		{stageMaking, stageMade, stageCutOff, stageMade, stageStarted}, // it runs after all
		{stageMaking, stageMade, stageCutOff, stageTakingBack, stageMade, stageStarted},
		{stageCutOff, stageTakingBack, stageMaking, stageGivenUp}, // a start comes before it is taken back
	} {
		a := attempt{at: stageNone}
		for _, s := range to {
			if a = a.move(s); a.at != s {
				t.Errorf("%v: it stays %s instead of %s", to, a.at, s)
			}
		}
	}
}

// A goroutine that is still at work on a start that was given up does not change that, and a
// program that runs is not taken back.
func TestAnAttemptStaysWhereNothingFollows(t *testing.T) {
	for _, to := range allStages {
		if a := (attempt{at: stageGivenUp}).move(to); a.at != stageGivenUp {
			t.Errorf("from given up to %s", a.at)
		}
		if a := (attempt{at: stageStarted}).move(to); a.at != stageStarted && a.at != stageGivenUp {
			t.Errorf("from started to %s", a.at)
		}
	}
	for _, from := range allStages {
		a := attempt{at: from}
		if got := a.move(from); got != a {
			t.Errorf("from %s to itself: %+v", from, got)
		}
		if a = a.move(stageGivenUp); a.at != stageGivenUp {
			t.Errorf("%s cannot be given up", from)
		}
		if from != stageCutOff && slices.Contains(moves[from], stageTakingBack) {
			t.Errorf("%s is taken back, and was not found to be cut off", from)
		}
	}
}

func TestAStartThatWasTakenBackIsRemembered(t *testing.T) {
	a := attempt{at: stageNone}
	for _, s := range []stage{stageMaking, stageMade, stageCutOff, stageTakingBack} {
		if a = a.move(s); a.again {
			t.Errorf("%s: an earlier start was taken back", s)
		}
	}
	for _, s := range []stage{stageNone, stageMaking, stageMade, stageStarted} {
		if a = a.move(s); !a.again {
			t.Errorf("%s: no earlier start was taken back", s)
		}
	}
}

// The end of a process is not an exit of the container while it is being undone, and nobody is at
// work on a start then.
func TestAnAttemptThatIsUndoneIsNotInFlight(t *testing.T) {
	for _, s := range allStages {
		a := attempt{at: s}
		if want := s == stageCutOff || s == stageTakingBack; a.undone() != want {
			t.Errorf("%s is undone: %v", s, a.undone())
		}
		if want := s == stageMaking || s == stageRestoring || s == stageMade; a.inFlight() != want {
			t.Errorf("%s is in flight: %v", s, a.inFlight())
		}
	}
}

func TestAnAttemptIsReadFromTheRecord(t *testing.T) {
	process := state.Process{Process: pidfd.Process{Pid: 1}}
	for _, row := range []struct {
		st            state.Status
		begun         bool
		want, reached stage
	}{
		{state.Status{Phase: state.Creating, Process: process}, true, stageNone, stageNone},
		{state.Status{Phase: state.Created}, false, stageNone, stageNone},
		{state.Status{Phase: state.Created}, true, stageMaking, stageMaking},
		{state.Status{Phase: state.Created, Start: state.Start{Restoring: "/c1"}}, true, stageRestoring, stageRestoring},
		{state.Status{Phase: state.Created, Process: process}, true, stageMade, stageMade},
		{state.Status{Phase: state.Created, Start: state.Start{TakingBack: true}}, false, stageTakingBack, stageNone},
		{state.Status{Phase: state.Created, Start: state.Start{TakingBack: true}}, true, stageTakingBack, stageMaking},
		{state.Status{Phase: state.Created, Start: state.Start{TakingBack: true, Restoring: "/c1"}}, true, stageTakingBack, stageRestoring},
		{state.Status{Phase: state.Created, Start: state.Start{TakingBack: true}, Process: process}, true, stageTakingBack, stageMade},
		{state.Status{Phase: state.Running, Process: process}, true, stageStarted, stageStarted},
		{state.Status{Phase: state.Exited, Start: state.Start{Restoring: "/c1"}}, true, stageStarted, stageStarted},
	} {
		if got := recorded(&row.st, row.begun); got != row.want {
			t.Errorf("%+v, begun %v: %s, want %s", row.st, row.begun, got, row.want)
		}
		for _, s := range allStages {
			want, ran := row.want, row.reached
			if s == stageGivenUp {
				want, ran = stageGivenUp, stageGivenUp
			}
			a := attempt{at: s}
			if got := a.found(&row.st, row.begun, false); got != want {
				t.Errorf("%+v, begun %v, %s: found %s, want %s", row.st, row.begun, s, got, want)
			}
			if got := a.found(&row.st, row.begun, true); got != ran {
				t.Errorf("%+v, begun %v, %s, and it ran: found %s, want %s", row.st, row.begun, s, got, ran)
			}
		}
	}
}
