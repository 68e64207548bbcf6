// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// manySchedules are played when nobody says how many.
var manySchedules = 3000

var (
	schedules = flag.Int("schedules", 0, "random schedules to play")
	seed      = flag.Uint64("seed", 0, "play this schedule alone")
	length    = flag.Int("length", 60, "steps of a random schedule")
)

// TestMain lets one goroutine run at a time: what happens between two turns is then nearly always in
// the same order, too.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// Anything at any time: nothing is lost, told wrong, stuck or left.
func TestRandomSchedules(t *testing.T) {
	if *seed != 0 {
		playSeed(t, *seed)
		return
	}
	if *schedules == 0 {
		*schedules = manySchedules
	}
	first := rand.Uint64()>>1 | 1
	for i := range uint64(*schedules) {
		if r, _ := schedule(t, first+i); r != "" {
			t.Errorf("seed %d: %s", first+i, r)
		}
	}
}

func schedule(t *testing.T, seed uint64) (report string, journal []string) {
	return played(t, seed, func(t *testing.T, s *Story) error { return s.Random(rand.New(rand.NewPCG(seed, 0)), *length) })
}

func effects(journal []string) []string {
	return slices.DeleteFunc(journal, func(l string) bool { return strings.HasPrefix(l[10:], "     ") })
}

func TestReplays(t *testing.T) {
	differ := 0
	for i := range uint64(*schedules) {
		_, a := schedule(t, i+1)
		_, b := schedule(t, i+1)
		a, b = effects(a), effects(b)
		for k := range min(len(a), len(b)) {
			if a[k] != b[k] {
				differ++
				if differ < 10 {
					t.Errorf("seed %d differs in line %d of %d:\n%s\n%s\n%s\n----\n%s", i+1, k, len(a), strings.Join(a[max(0, k-15):k], "\n"), a[k], b[k], strings.Join(b[k:min(len(b), k+15)], "\n"))
				}
				break
			}
		}
	}
	t.Logf("%d of %d differ", differ, *schedules)
}

func playSeed(t *testing.T, seed uint64) {
	t.Helper()
	if r, _ := schedule(t, seed); r != "" {
		t.Error(r)
		t.Fatalf("seed %d: go test ./test/sim -run Random -seed %d", seed, seed)
	}
}
