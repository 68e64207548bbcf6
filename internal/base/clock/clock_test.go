// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// machine is a machine whose clock can be set.
type machine struct {
	boot int
	up   time.Duration // since boot
	wall time.Time
	set  chan error
}

func (m *machine) SinceBoot() time.Duration         { return m.up }
func (m *machine) Read() (time.Duration, time.Time) { return m.up, m.wall }
func (m *machine) Boot() string                     { return fmt.Sprint("boot", m.boot) }

func (m *machine) Set(ctx context.Context) error {
	select {
	case err := <-m.set:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (m *machine) pass(d time.Duration) { m.up += d; m.wall = m.wall.Add(d) }

// reboot takes the machine down for a while.
func (m *machine) reboot(away time.Duration) {
	m.wall = m.wall.Add(away)
	m.boot++
	m.up = 0
	m.pass(10 * time.Second)
}

func newMachine() *machine {
	m := &machine{wall: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), set: make(chan error)}
	m.pass(time.Minute)
	return m
}

func open(t *testing.T, dir string, m *machine) *Clock {
	t.Helper()
	c, err := Open(Path(dir), m)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// PROPERTIES 70: the clock is set at any instant, in both directions, also while berth is away and
// over a reboot. Instants stay in the order in which they were made, wall time keeps that order, is
// never later than now, and is right as soon as the clock is.
func TestInstantsKeepTheirOrderWhateverTheClockDoes(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	m, dir := newMachine(), t.TempDir()
	c := open(t, dir, m)
	type made struct {
		at     Instant
		boot   int
		passed time.Duration // on the machine, in all
	}
	var all []made
	passed := time.Duration(0)
	pass := func(d time.Duration) { m.pass(d); passed += d }
	for range 300 {
		pass(time.Duration(rng.Int64N(int64(time.Hour))))
		switch rng.IntN(6) {
		case 0:
			m.wall = m.wall.Add(time.Duration(rng.Int64N(int64(60*24*time.Hour))) - 30*24*time.Hour)
			if rng.IntN(2) == 0 {
				c.Look()
			}
		case 1:
			if err := c.save(rng.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			c = open(t, dir, m)
		case 2:
			if err := c.save(false); err != nil {
				t.Fatal(err)
			}
			pass(time.Duration(rng.Int64N(int64(saved)))) // it is killed before it saves again
			all = append(all, made{c.Next(), m.boot, passed})
			m.reboot(time.Duration(rng.Int64N(int64(time.Hour))))
			if rng.IntN(3) == 0 {
				m.wall = m.wall.Add(-time.Duration(rng.Int64N(int64(60 * 24 * time.Hour))))
			}
			passed += 10 * time.Second
			c = open(t, dir, m)
		}
		all = append(all, made{c.Next(), m.boot, passed})
	}
	c.Look()
	now := c.Now()
	for n, x := range all {
		if n > 0 && !all[n-1].at.Before(x.at) {
			t.Fatalf("seed %d: instant %d is %s, and the one before it %s", seed, n, x.at, all[n-1].at)
		}
		if n > 0 && c.Wall(x.at).Before(c.Wall(all[n-1].at)) {
			t.Fatalf("seed %d: instant %d is shown at %s, and the one before it at %s", seed, n, c.Wall(x.at), c.Wall(all[n-1].at))
		}
		if c.Wall(x.at).After(m.wall) {
			t.Fatalf("seed %d: instant %d is shown at %s, and it is %s", seed, n, c.Wall(x.at), m.wall)
		}
		if want := m.wall.Add(x.passed - passed); x.boot == m.boot && c.Wall(x.at).Sub(want).Abs() > 2*jitter {
			t.Fatalf("seed %d: instant %d of this boot is shown at %s, and was at %s", seed, n, c.Wall(x.at), want)
		}
		if age := c.Age(x.at); age > passed-x.passed+jitter {
			t.Fatalf("seed %d: instant %d is %s old, and the node has lived %s since", seed, n, age, passed-x.passed)
		}
		if x.boot == m.boot && now.Sub(x.at)-(passed-x.passed) > jitter {
			t.Fatalf("seed %d: instant %d was %s ago, not %s", seed, n, now.Sub(x.at), passed-x.passed)
		}
		if back := c.Instant(c.Wall(x.at)); x.boot == m.boot && back != x.at {
			t.Fatalf("seed %d: instant %d is %s, and %s from its wall time", seed, n, x.at, back)
		}
	}
}

// PROPERTIES 70: a node without a battery boots in 1970, and NTP sets its clock. What was stamped
// before is right then, and so it is after the next boot, which begins in 1970 as well.
func TestWhatWasStampedBeforeTheClockWasRightIsRightAfterwards(t *testing.T) {
	m, dir := newMachine(), t.TempDir()
	right := m.wall
	m.wall = time.Unix(60, 0)
	c := open(t, dir, m)
	first := c.Next()
	m.wall = right
	if s, ok := c.Look(); !ok || s.From.Unix() != 60 || !s.To.Equal(right) || s.Away {
		t.Errorf("%+v, %v", s, ok)
	}
	if got := c.Wall(first); got.Sub(right).Abs() > jitter {
		t.Errorf("it is shown at %s, not %s", got, right)
	}
	if err := c.save(false); err != nil {
		t.Fatal(err)
	}
	m.reboot(time.Minute)
	later := m.wall
	m.wall = time.Unix(10, 0)
	c = open(t, dir, m)
	if got := c.Wall(first); got.After(m.wall) {
		t.Errorf("an earlier boot's is shown at %s, and it is %s", got, m.wall)
	}
	second := c.Next()
	m.wall = later
	c.Look()
	if got := c.Wall(first); got.Sub(right).Abs() > jitter {
		t.Errorf("the first is shown at %s, not %s", got, right)
	}
	if got := c.Wall(second); got.Sub(later).Abs() > jitter {
		t.Errorf("the second is shown at %s, not %s", got, later)
	}
}

// A restart of berth changes nothing that is shown, and no reading of the kernel's clocks does that
// is off by less than a step. A step while berth was away is told.
func TestWallTimeChangesAtAStepAlone(t *testing.T) {
	m, dir := newMachine(), t.TempDir()
	c := open(t, dir, m)
	at := c.Next()
	shown, version := c.Wall(at), c.Version()
	m.wall = m.wall.Add(jitter / 2)
	if s, ok := c.Look(); ok || c.Version() != version {
		t.Errorf("%+v is a step", s)
	}
	if c = open(t, dir, m); !c.Wall(at).Equal(shown) || len(c.away) > 0 {
		t.Errorf("it is shown at %s after a restart, and at %s before", c.Wall(at), shown)
	}
	m.wall = m.wall.Add(-time.Hour)
	c = open(t, dir, m)
	if len(c.away) != 1 || !c.away[0].Away || c.away[0].To.Sub(c.away[0].From).Round(time.Second) != -time.Hour {
		t.Errorf("the steps while berth was away: %+v", c.away)
	}
	if got := c.Wall(at).Sub(shown).Round(time.Second); got != -time.Hour {
		t.Errorf("it is shown %s later", got)
	}
}

// PROPERTIES 70: neither a step nor the time between two boots makes anything older.
func TestOnlyTimeThatTheNodeHasLivedCounts(t *testing.T) {
	m, dir := newMachine(), t.TempDir()
	c := open(t, dir, m)
	at := c.Next()
	m.pass(time.Hour)
	m.wall = m.wall.Add(30 * 24 * time.Hour)
	c.Look()
	if err := c.save(true); err != nil {
		t.Fatal(err)
	}
	m.reboot(90 * 24 * time.Hour)
	c = open(t, dir, m)
	m.pass(time.Hour)
	if got := c.Age(at).Round(time.Minute); got != 2*time.Hour {
		t.Errorf("it is %s old", got)
	}
}

// A file that is damaged, or whose disk takes nothing, is reported, and the clock goes.
func TestADamagedFileIsReported(t *testing.T) {
	m, dir := newMachine(), t.TempDir()
	at := open(t, dir, m).Next()
	b, err := os.ReadFile(Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(b) - 66 {
		flipped := append([]byte{}, b...)
		flipped[n] ^= 1
		if err := os.WriteFile(Path(dir), flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(Path(dir), m)
		if err == nil || !strings.Contains(err.Error(), "damaged") || c.Now().Before(at) {
			t.Fatalf("byte %d: %v, and it is %s", n, err, c.Now())
		}
	}
	if c, err := Open(filepath.Join(dir, "absent", "clock.json"), m); err == nil || c.Now().IsZero() {
		t.Errorf("%v, and it is %s", err, c.Now())
	}
}

// A step is told at once, and found within a second if the kernel cannot tell of it.
func TestAStepIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		c := open(t, t.TempDir(), m)
		ctx, cancel := context.WithCancel(t.Context())
		var steps []Step
		var failed []error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx, func(s Step) { steps = append(steps, s) }, func(err error) { failed = append(failed, err) })
		}()
		synctest.Wait()
		m.wall = m.wall.Add(time.Hour)
		m.set <- nil
		synctest.Wait()
		if len(steps) != 1 || steps[0].To.Sub(steps[0].From).Round(time.Second) != time.Hour {
			t.Errorf("%+v", steps)
		}
		m.wall = m.wall.Add(-time.Hour)
		m.set <- errors.New("no timer")
		time.Sleep(again)
		synctest.Wait()
		if len(steps) != 2 || len(failed) != 1 {
			t.Errorf("%+v, %v", steps, failed)
		}
		cancel()
		<-ended
	})
}

// An instant is a time for a berth that knows no instants, and such a time is an instant.
func TestAnInstantHasTheFormOfATime(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	b, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	var i Instant
	if err := json.Unmarshal(b, &i); err != nil || i != Stamped(at) {
		t.Errorf("%s is read as %s: %v", b, i, err)
	}
	var back time.Time
	if b, err = json.Marshal(i); err != nil || json.Unmarshal(b, &back) != nil || !back.Equal(at) {
		t.Errorf("%s is written as %s: %v", i, b, err)
	}
	if b, err = json.Marshal(struct {
		At Instant `json:"at,omitzero"`
	}{}); err != nil || string(b) != "{}" {
		t.Errorf("none is written as %s: %v", b, err)
	}
	if err := json.Unmarshal([]byte(`"yesterday"`), &i); err == nil {
		t.Error("yesterday is an instant")
	}
}
