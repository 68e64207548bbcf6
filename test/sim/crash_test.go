// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/test/world"
)

var thorough = flag.Bool("thorough", false, "every pair of crashes, not every fifth")

// tempDir makes a directory, in memory where that is possible: what a real disk does is not the
// subject here. The caller removes it.
func tempDir(t *testing.T) string {
	t.Helper()
	base := "/dev/shm"
	if st, err := os.Stat(base); err != nil || !st.IsDir() {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "sim")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// check plays a story and reports what went wrong.
func check(t *testing.T, play func(t *testing.T, s *Story) error) {
	t.Helper()
	if r, _ := played(t, 1, play); r != "" {
		t.Error(r)
	}
}

// played plays a story with each ending, in a bubble of its own. The report is "" when all went well.
func played(t *testing.T, seed uint64, play func(t *testing.T, s *Story) error) (report string, journal []string) {
	t.Helper()
	for _, how := range Endings {
		if report, journal = playedTo(t, how, seed, play); report != "" {
			return "with the ending " + string(how) + ": " + report, journal
		}
	}
	return "", journal
}

// playedTo plays a story with one ending.
func playedTo(t *testing.T, how Ending, seed uint64, play func(t *testing.T, s *Story) error) (report string, journal []string) {
	t.Helper()
	dir := tempDir(t)
	defer os.RemoveAll(dir) // and not at the end of the test, which may play thousands
	synctest.Test(t, func(t *testing.T) {
		s := NewStory(t.Context(), dir, seed)
		err := play(t, s)
		if err == nil {
			err = s.Finish(how)
		}
		if err != nil {
			s.Abandon()
		}
		s.World.End()
		report, journal = s.Report(err), s.World.Journal()
	})
	return report, journal
}

// handlers are those whose sandboxes have a process, and those whose sandboxes have none.
var handlers = []string{"", world.Pinned}

func TestALife(t *testing.T) {
	for _, handler := range handlers {
		check(t, func(t *testing.T, s *Story) error { return aLife(s, handler) })
	}
}

// aLife is the life of a pod, from its beginning to its end.
func aLife(s *Story, handler string) error {
	if err := s.Boot(); err != nil {
		return err
	}
	for _, err := range []error{
		s.RunPod("p1", handler), s.Create("p1/c1"), s.Start("c1"), s.Create("p1/c2"), s.Start("c2"),
	} {
		if err != nil {
			return err
		}
	}
	time.Sleep(time.Second)
	s.World.Exit(s.ID("c1"), 42, false)
	time.Sleep(time.Second)
	if err := s.StopUnit("c2", 0); err != nil {
		return err
	}
	return s.Remove("p1")
}

// The same life, with berth killed at its k-th effect on the world, for every k: before the effect,
// or right after it. The client asks again until it has what it wants (PROPERTIES 4).
func TestKilledBetweenAnyTwoEffects(t *testing.T) {
	first := 1
	for _, exact := range []bool{true, false} {
		for _, after := range []bool{false, true} {
			for _, handler := range handlers {
				killedAtEach(t, first, exact, after, false, handler)
				first = 1 + first%killStep
			}
		}
	}
}

// The same for containers that are restored from a checkpoint (PROPERTIES 32): their processes are
// made by the call that starts them, so that no record can have them before they run.
func TestKilledBetweenAnyTwoEffectsOfARestore(t *testing.T) {
	first := 1
	for _, exact := range []bool{true, false} {
		for _, after := range []bool{false, true} {
			killedAtEach(t, first, exact, after, true, world.Pinned)
			first = 1 + first%killStep
		}
	}
}

// killStep is how many effects count for one at which berth is killed.
var killStep = 1

func killedAtEach(t *testing.T, first int, exact, after, restored bool, handler string) {
	t.Helper()
	for k := first; ; k += killStep {
		reached := false
		check(t, func(t *testing.T, s *Story) error {
			s.World.Exact, s.Restored = exact, restored
			s.World.KillAt(k, after)
			err := stubborn(s, handler)
			reached = s.World.Killed()
			return err
		})
		if t.Failed() {
			t.Fatalf("killed at effect %d (after it: %v, exact: %v, handler %q)", k, after, exact, handler)
		}
		if !reached {
			t.Logf("exact %v, after %v, handler %q: fewer than %d effects", exact, after, handler, k)
			return
		}
	}
}

// stubborn is aLife for a client that goes on although berth dies at any instant.
func stubborn(s *Story, handler string) error {
	ended := map[string]bool{}
	for try := range 10 {
		if try > 0 {
			time.Sleep(3 * time.Second)
		}
		if s.Boot() != nil {
			continue
		}
		steps := []func() error{
			func() error { return s.made("p1", func() error { return s.RunPod("p1", handler) }) },
			func() error { return s.made("p1/c1", func() error { return s.Create("p1/c1") }) },
			func() error { return s.started("p1/c1") },
			func() error { return s.made("p1/c2", func() error { return s.Create("p1/c2") }) },
			func() error { return s.started("p1/c2") },
			func() error {
				time.Sleep(time.Second)
				if !ended["c1"] {
					ended["c1"] = true
					s.World.Exit(s.ID("c1"), 42, false)
				}
				time.Sleep(time.Second)
				return s.StopUnit("c2", 0)
			},
			func() error { return s.Remove("p1") },
		}
		ok := true
		for _, step := range steps {
			if step() != nil || s.Berth().Dead() {
				ok = false
				break
			}
		}
		if ok {
			return nil
		}
	}
	return nil // Finish does the rest
}

// Killed at its k-th effect, and again, while it recovers, at its j-th.
func TestKilledAgainWhileItRecovers(t *testing.T) {
	step := 5
	if killStep > 1 {
		step = 10
	}
	if *thorough {
		step = 1
	}
	for k := 1; k < 70; k += step {
		for j := 1; j < 20; j += step {
			check(t, func(t *testing.T, s *Story) error {
				s.World.Keeper = j%2 == 0
				s.World.KillAt(k, k%2 == 0)
				s.onDeath = func() { s.World.KillAt(j, j%2 == 0) }
				return stubborn(s, handlers[(j/step+k/step)%2])
			})
			if t.Failed() {
				t.Fatalf("killed at effect %d, and at effect %d after that", k, j)
			}
		}
	}
}

// The database is an older copy: what was made since has no record, and is removed; what was
// removed since is settled.
func TestAnOldBackup(t *testing.T) {
	for _, handler := range handlers {
		anOldBackup(t, handler)
	}
}

func anOldBackup(t *testing.T, handler string) {
	t.Helper()
	check(t, func(t *testing.T, s *Story) error {
		db, copied := filepath.Join(s.dir, "root/berth.db"), filepath.Join(s.dir, "copy.db")
		for _, step := range []func() error{
			s.Boot,
			func() error { return s.RunPod("p1", handler) },
			func() error { return s.Create("p1/c1") },
			func() error { return s.Start("c1") },
			func() error { return s.Create("p1/c2") },
			func() error { return s.Start("c2") },
			s.Stop,
			func() error { return copyFile(db, copied) },
			s.Boot,
			func() error { return s.Remove("c1") },
			func() error { return s.RunPod("p2", handler) },
			func() error { return s.Create("p2/c3") },
			func() error { return s.Start("c3") },
			func() error { return s.Create("p2/c4") },
			func() error { return s.exit("c2", 5) },
			s.Stop,
			func() error { return copyFile(copied, db) },
			s.forget,
			s.Boot,
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// forget drops what was observed: an older database says otherwise.
func (s *Story) forget() error {
	s.Watch = NewWatch(s.World, s.transcript.event)
	s.World.LoseCodes()
	return nil
}

func (s *Story) exit(name string, code uint32) error {
	s.World.Exit(s.ID(name), code, false)
	time.Sleep(time.Second)
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}
