// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

// manySchedules are played when nobody says how many.
var manySchedules = 3000

var (
	schedules = flag.Int("schedules", 0, "random schedules to play")
	seed      = flag.Uint64("seed", 0, "play this schedule alone")
	length    = flag.Int("length", 60, "steps of a random schedule")
)

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
	for lane := range 2 {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			for i := lane; i < *schedules; i += 2 {
				playSeed(t, first+uint64(i))
				if t.Failed() {
					return
				}
			}
		})
	}
}

func playSeed(t *testing.T, seed uint64) {
	t.Helper()
	tell(t, func(t *testing.T, s *Story) error { return s.Random(rand.New(rand.NewPCG(seed, 0)), *length) })
	if t.Failed() {
		t.Fatalf("seed %d: go test ./test/sim -run Random -seed %d", seed, seed)
	}
}
