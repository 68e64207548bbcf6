// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
)

// PROPERTIES 4 and 24: a container is updated before its start and while it runs, and berth is
// killed at its k-th effect on the world, for every k: before the effect, or right after it. Nobody
// asks again. When berth is back, what the status reports is what the container has, and an update
// that had an answer is in effect.
func TestAnUpdateIsKilledBetweenAnyTwoEffects(t *testing.T) {
	for first, after := range []bool{false, true} {
		for k := 1 + first*killStep/2; ; k += killStep {
			reached := false
			check(t, func(_ *testing.T, s *Story) error {
				s.World.KillAt(k, after)
				err := updates(s)
				reached = s.World.Killed()
				return err
			})
			if t.Failed() {
				t.Fatalf("killed at effect %d (after it: %v)", k, after)
			}
			if !reached {
				t.Logf("after %v: fewer than %d effects", after, k)
				break
			}
		}
	}
}

// updates is a life in which a container is updated. A client whose berth dies in a call does not
// repeat that call.
func updates(s *Story) error {
	var answered int64 // the limit of the newest update that had an answer
	if s.Boot() != nil {
		return s.back()
	}
	update := func(memory int64) func() error {
		return func() error {
			err := s.Update("p1/c1", memory)
			if err == nil {
				answered = memory
			}
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return s.RunPod("p1", "") },
		func() error { return s.Create("p1/c1") },
		update(1 << 20),
		func() error { return s.Start("p1/c1") },
		update(2 << 20),
	} {
		if step() != nil {
			if err := s.back(); err != nil {
				return err
			}
			if s.ID("p1/c1") == "" {
				return nil
			}
			time.Sleep(time.Second) // a start that took effect is found
			if err := s.started("p1/c1"); err != nil {
				return err
			}
			break
		}
	}
	time.Sleep(time.Minute) // what was cut off is carried out
	st, err := s.Status("p1/c1")
	if err != nil || st == nil {
		return err
	}
	reported := st.GetResources().GetLinux().GetMemoryLimitInBytes()
	if reported < answered {
		s.Watch.Problem("an update to %d had its answer, and %d is reported", answered, reported)
	}
	return s.expectMemory("p1/c1", reported)
}

// back starts berth again after it was killed.
func (s *Story) back() error {
	var err error
	for range 5 {
		time.Sleep(3 * time.Second)
		if err = s.Boot(); err == nil {
			return nil
		}
	}
	return err
}
