// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
)

// A commit takes the same way each time, and many commits take each way about equally often.
func TestEachWayHasItsShareOfTheCommits(t *testing.T) {
	const ways, commits = 3, 3000
	var taken [ways]int
	for c := range commits {
		seed := fmt.Sprint("commit ", c)
		way := pick(seed, "a test", ways)
		if again := pick(seed, "a test", ways); again != way {
			t.Errorf("%s takes way %d, then %d", seed, way, again)
		}
		taken[way]++
	}
	for way, n := range taken {
		if n < commits/ways*8/10 {
			t.Errorf("way %d is taken by %d of %d commits", way, n, commits)
		}
	}
}

// A laboratory that was left as it is takes a part of what it compares, each commit another one, and
// the parts are the whole.
func TestTheSharesOfCommitsAreTheWhole(t *testing.T) {
	const parts = 4
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	seen := map[int]bool{}
	for c := range 100 {
		for _, n := range share(pick(fmt.Sprint("commit ", c), "a test", parts), parts, all) {
			seen[n] = true
		}
	}
	if len(seen) != len(all) {
		t.Errorf("100 commits have taken %v of %v", seen, all)
	}
}
