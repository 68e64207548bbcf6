// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

func TestALayerGoesFromOneStateToTheNext(t *testing.T) {
	for name, c := range map[string]struct {
		from state
		to   []state
		want state
	}{
		"it is synced and marked":                   {stateNew, []state{stateSyncing, stateSynced, stateMarked}, stateMarked},
		"it is written again while it is synced":    {stateNew, []state{stateSyncing, stateNew, stateSynced, stateMarked}, stateNew},
		"it is written again before it is marked":   {stateNew, []state{stateSyncing, stateSynced, stateNew, stateMarked}, stateNew},
		"its sync fails":                            {stateNew, []state{stateSyncing, stateUnsynced, stateSyncing, stateSynced, stateMarked}, stateUnsynced},
		"it is written again after that":            {stateUnsynced, []state{stateNew, stateSyncing, stateSynced, stateMarked}, stateMarked},
		"its sync fails after it was written again": {stateNew, []state{stateSyncing, stateNew, stateUnsynced}, stateNew},
		"it is doubted":                             {stateNew, []state{stateDoubted, stateSyncing, stateSynced, stateMarked}, stateDoubted},
		"it is doubted, and right":                  {stateDoubted, []state{stateNew, stateSyncing, stateSynced, stateMarked}, stateMarked},
		"it is marked, and found wrong":             {stateMarked, []state{stateNew, stateMarked}, stateNew},
		"its mark was taken":                        {stateMarked, []state{stateSyncing, stateSynced}, stateSynced},
	} {
		s := standing{at: c.from}
		for _, to := range c.to {
			s = s.move(to)
		}
		if s.at != c.want {
			t.Errorf("%s: %s, want %s", name, s.at, c.want)
		}
	}
	for from, next := range moves { // PROPERTIES 39
		if slices.Contains(next, stateMarked) && from != stateSynced || slices.Contains(next, stateSynced) && from != stateSyncing {
			t.Errorf("from %s it may go on to %s", from, next)
		}
		if from == stateUnsynced && slices.Contains(next, stateSyncing) {
			t.Error("what could not be synced is synced once more")
		}
	}
	if known := slices.Sorted(maps.Keys(moves)); len(known) != 6 {
		t.Errorf("states: %s", known)
	}
}

// A pull looked at each layer once, also after a look that could not tell anything.
func TestALayerIsLookedAtOnceUnlessItIsWrong(t *testing.T) {
	boot, err := openBoot(t.TempDir(), "a", "")
	if err != nil {
		t.Fatal(err)
	}
	s := NewItems(boot)
	looks := func(want, wantWrong bool) {
		t.Helper()
		if look, wrong := s.Look(mid); look != want || wrong != wantWrong {
			t.Errorf("look: %v, wrong: %v", look, wrong)
		}
	}
	looks(true, false)
	looks(false, false)
	s.Looked(mid, false)
	looks(true, false)
	s.FoundWrong(mid)
	looks(true, true)
	write := func(replaced bool, err error) {
		t.Helper()
		if got := s.Rewrite(t.Context(), mid, func() (bool, error) { return replaced, err }); !errors.Is(got, err) {
			t.Error(got)
		}
	}
	write(false, errors.New("no blob"))
	looks(true, true)
	write(true, nil)
	looks(false, false)
	if err := boot.syncing(mid); err != nil {
		t.Fatal(err)
	}
	looks(true, false)
	if write(true, nil); s.Unsynced(mid) {
		t.Error("it was written again and is unsynced")
	}
}
