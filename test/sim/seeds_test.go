// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/world"
)

var (
	schedules = flag.Int("schedules", 0, "explore that many random schedules")
	from      = flag.Uint64("from", 0, "the first seed of -schedules, which then counts up; 0 takes any seeds")
	seed      = flag.Uint64("seed", 0, "play the random schedule of this seed")
	replays   = flag.Int("replays", 0, "play that many random schedules twice, at least")
	length    = flag.Int("length", 60, "steps of a random schedule")
	vain      = flag.Bool("vain", false, "questions of random schedules are asked in vain at any time")
	restored  = flag.Bool("restored", false, "containers of random schedules are restored from a checkpoint")
)

// rangeStep is how many seeds of a range count for one that is played.
var rangeStep uint64 = 1

// repeated is how many schedules are played twice.
var repeated uint64 = 50

// enough is how often the schedule of a seed is played before it is taken to be right: see doc.go.
const enough = 25

// TestMain lets one goroutine run at a time. What happens between two turns is then nearly always
// in the same order, too. A schedule leaves little behind: the garbage is collected rarely.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(1000)
	flag.Parse()
	if *bundleFile != "" {
		if err := flag.Set("test.run", "^TestBundle$"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// Whatever a client asks for and whatever breaks, at any time: no exit is lost or wrong, nothing is
// stuck, nothing is left. The seeds are fixed: see testdata/seeds.
func TestSeeds(t *testing.T) {
	if *seed != 0 {
		return
	}
	defer func(v, r bool) { *vain, *restored = v, r }(*vain, *restored)
	for _, f := range fixedSeeds(t) {
		*vain, *restored = f.vain, f.restored
		if r := schedule(t, f.seed); r != "" {
			t.Fatal(failure(f.seed, 1, 1, r))
		}
	}
}

// The same with containers that are restored from a checkpoint (PROPERTIES 32).
func TestSeedsOfRestores(t *testing.T) {
	if *seed != 0 {
		return
	}
	asked := *restored
	*restored = true
	defer func() { *restored = asked }()
	for s := uint64(1); s <= 100; s += rangeStep {
		if r := schedule(t, s); r != "" {
			t.Fatal(failure(s, 1, 1, r))
		}
	}
}

// The same while any question to the kernel, to /proc, to a cgroup, to containerd or to a shim may
// be asked in vain (PROPERTIES 33).
func TestSeedsInVain(t *testing.T) {
	if *seed != 0 {
		return
	}
	asked := *vain
	*vain = true
	defer func() { *vain = asked }()
	for s := uint64(1); s <= 100; s += rangeStep {
		if r := schedule(t, s); r != "" {
			t.Fatal(failure(s, 1, 1, r))
		}
	}
}

// TestSeed plays the schedule of -seed, until it fails.
func TestSeed(t *testing.T) {
	if *seed == 0 {
		return
	}
	for n := range enough {
		if r := schedule(t, *seed); r != "" {
			t.Fatal(failure(*seed, 1, n+1, r))
		}
	}
}

// TestExplore plays schedules that nobody has played before, or those from -from on, until a few
// have failed. In every second one questions are asked in vain.
func TestExplore(t *testing.T) {
	asked := *vain
	defer func() { *vain = asked }()
	failed := 0
	for i := range *schedules {
		*vain = asked || i%2 == 1
		s := *from + uint64(i)
		if *from == 0 {
			s = rand.Uint64()
		}
		r := schedule(t, s)
		if r == "" {
			continue
		}
		again := 1
		for range enough - 1 {
			if schedule(t, s) != "" {
				again++
			}
		}
		t.Error(failure(s, again, enough, r))
		if failed++; failed == 5 {
			return
		}
	}
}

// TestASeedReplays plays each schedule twice, which has the same effects in the same order. On a
// busy machine Go takes the processor from a goroutine anywhere, which changes the order once in
// thousands of plays: a schedule that has differed is played [enough] times, and may differ in two
// of them.
func TestASeedReplays(t *testing.T) {
	for s := uint64(1); s <= max(uint64(*replays), repeated); s++ {
		play := func() []string {
			_, journal := played(t, s, random(s))
			return world.Effects(journal)
		}
		first, second := play(), play()
		if slices.Equal(first, second) {
			continue
		}
		plays := map[string]int{}
		for range enough {
			plays[strings.Join(play(), "\n")]++
		}
		same := slices.Max(slices.Collect(maps.Values(plays)))
		t.Logf("seed %d has differed once, and then %d plays of %d were the same: %s", s, same, enough, difference(first, second))
		if same < enough-2 {
			t.Errorf("seed %d plays differently", s)
		}
	}
}

// difference shows where two journals part.
func difference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("in line %d of %d\n%s\n  once:\n%s\n  then:\n%s", i, len(a),
				strings.Join(a[max(0, i-10):i], "\n"), strings.Join(a[i:min(len(a), i+5)], "\n"), strings.Join(b[i:min(len(b), i+5)], "\n"))
		}
	}
	return fmt.Sprintf("%d lines once, then %d", len(a), len(b))
}

func random(seed uint64) func(*testing.T, *Story) error {
	return func(_ *testing.T, s *Story) error {
		s.Restored = *restored
		if *vain {
			s.Vain = rand.New(rand.NewPCG(seed, 1))
		}
		return s.Random(rand.New(rand.NewPCG(seed, 0)), *length)
	}
}

func schedule(t *testing.T, seed uint64) string {
	t.Helper()
	report, _ := played(t, seed, random(seed))
	return report
}

func failure(seed uint64, failed, plays int, report string) string {
	args := ""
	if *restored {
		args = " -restored"
	}
	if *vain {
		args += " -vain"
	}
	return fmt.Sprintf("seed %d failed %d times in %d: go test ./test/sim -args -seed %d%s\n%s", seed, failed, plays, seed, args, report)
}

// fixed is a schedule that is always played.
type fixed struct {
	seed           uint64
	vain, restored bool
}

// fixedSeeds reads testdata/seeds.
func fixedSeeds(t *testing.T) []fixed {
	t.Helper()
	b, err := os.ReadFile("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	var seeds []fixed
	for line := range strings.Lines(string(b)) {
		text, _, _ := strings.Cut(line, "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		f := fixed{vain: slices.Contains(words, "-vain"), restored: slices.Contains(words, "-restored")}
		from, to, isRange := strings.Cut(words[0], "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 64)
		last, err2 := strconv.ParseUint(to, 10, 64)
		if err1 != nil || err2 != nil || last < first {
			t.Fatalf("testdata/seeds: %q is not a seed, nor a range of seeds", text)
		}
		for s := first; s <= last; s += rangeStep {
			f.seed = s
			seeds = append(seeds, f)
		}
	}
	return seeds
}
