// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"slices"
	"testing"
)

// outcomes are all that there are.
var outcomes = []outcome{
	succeeded, needsParent, layerGone, wrongBeginning, wrongBytes, anArtifact, aCheckpoint, blobMissing, gaveUp,
}

func TestAPullGoesFromOneAttemptToTheNext(t *testing.T) {
	for name, c := range map[string]struct {
		outcomes []outcome
		want     attempt
	}{
		"an image": {
			[]outcome{succeeded, succeeded},
			attempt{at: stageDone},
		},
		"a layer that needs those below it": {
			[]outcome{needsParent, succeeded, succeeded},
			attempt{at: stageDone},
		},
		"a layer that is collected meanwhile": {
			[]outcome{layerGone, succeeded, succeeded},
			attempt{at: stageDone, below: true},
		},
		"one that is collected each time": {
			[]outcome{layerGone, layerGone},
			attempt{at: stageFailed, below: true},
		},
		"a wrong beginning": {
			[]outcome{needsParent, wrongBeginning, needsParent, layerGone, succeeded, succeeded},
			attempt{at: stageDone, anew: true, below: true},
		},
		"a registry that sends wrong bytes": {
			[]outcome{wrongBeginning, wrongBeginning},
			attempt{at: stageFailed, anew: true},
		},
		"a mirror that sends wrong bytes": {
			[]outcome{needsParent, wrongBytes, succeeded, succeeded},
			attempt{at: stageDone, lies: 1},
		},
		"only servers that do": {
			[]outcome{wrongBytes, wrongBytes, wrongBytes, wrongBytes, wrongBytes},
			attempt{at: stageFailed, lies: maxLies},
		},
		"a wrong layer whose blob is missing": {
			[]outcome{succeeded, blobMissing, succeeded, succeeded},
			attempt{at: stageDone, all: true, lost: true},
		},
		"one whose blob is missing again": {
			[]outcome{succeeded, blobMissing, succeeded, blobMissing},
			attempt{at: stageFailed, all: true, lost: true},
		},
		"an artifact with a wrong beginning in its manifest, and in a file": {
			[]outcome{wrongBeginning, anArtifact, wrongBeginning, succeeded},
			attempt{at: stageDone, all: true, anew: true},
		},
		"a checkpoint": {
			[]outcome{aCheckpoint, succeeded},
			attempt{at: stageDone, all: true},
		},
		"a checkpoint that is an artifact the next time": {
			[]outcome{aCheckpoint, anArtifact},
			attempt{at: stageFailed, all: true},
		},
		"a registry that does not answer": {
			[]outcome{gaveUp},
			attempt{at: stageFailed},
		},
	} {
		a := attempt{at: stageBeside}
		for _, o := range c.outcomes {
			a = a.after(o)
		}
		if a != c.want {
			t.Errorf("%s: %+v, want %+v", name, a, c.want)
		}
	}
}

// However it goes, a pull ends: it fetches the image 15 times at most.
func TestAPullEnds(t *testing.T) {
	most := 0
	var follow func(a attempt, fetched int, all bool)
	follow = func(a attempt, fetched int, all bool) {
		if a.over() {
			most = max(most, fetched)
			for _, o := range outcomes {
				if got := a.after(o); got.at != stageFailed {
					t.Errorf("%s goes on to %s by %q", a.at, got.at, o)
				}
			}
			return
		}
		if all && !a.all {
			t.Errorf("%+v: it forgets that all blobs are needed", a)
		}
		if a.at != stageMending {
			fetched++
		}
		if fetched > 15 {
			t.Fatalf("%d times, and %+v follows", fetched, a)
		}
		for _, o := range outcomes {
			follow(a.after(o), fetched, a.all)
		}
	}
	follow(attempt{at: stageBeside}, 0, false)
	if most != 15 {
		t.Errorf("it fetches an image %d times at most", most)
	}
	for from, by := range moves {
		for o := range by {
			if !slices.Contains(outcomes, o) {
				t.Errorf("%s: no such outcome: %s", from, o)
			}
		}
	}
}
