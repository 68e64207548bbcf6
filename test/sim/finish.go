// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/test/world"
)

// settleTime is longer than the longest back-off and the attempt after it, and than finding the
// objects that containerd made for a creation that was given up: its bound and two relists.
const settleTime = 17 * time.Minute

// Ending is how a story ends.
type Ending string

// The endings. A delay by berth's own back-offs is over when a client looks late, so that a wait
// that is much too long is only seen by a client that does not wait: each story is played with
// both.
const (
	Late Ending = "late" // the client looks when everything must be settled
	// it asks for everything at the instant at which nothing is broken any more
	AtOnce Ending = "at once"
)

// Endings are all of them.
var Endings = []Ending{Late, AtOnce}

// Finish ends the story: it mends everything that is broken, and waits, or asks for everything at
// once. From then on each call has its bound, also those that were made before. Later reports of
// berth must be true, and when every pod is removed nothing may be left.
func (s *Story) Finish(how Ending) error {
	s.World.KillAt(0, false)
	s.World.Heal()
	if s.World.ContainerdDown() {
		s.World.StartContainerd()
	}
	if err := s.Boot(); err != nil {
		return err
	}
	s.Subscribe()
	s.healed()
	if how == AtOnce {
		s.endAtOnce()
	}
	time.Sleep(settleTime)
	if err := s.Look(true); err != nil {
		return err
	}
	for _, l := range s.Berth().Core.Pods.Lanes() {
		s.Watch.Problem("lane %s is not idle: %+v", world.Short(l.ID), l)
	}
	pods, err := s.pods()
	if err != nil {
		return err
	}
	for _, id := range pods {
		if err := s.removePod(id); err != nil {
			s.Watch.Problem("pod %s cannot be removed: %v", world.Short(id), err)
		}
	}
	time.Sleep(time.Minute)
	s.leftovers()
	s.Unsubscribe()
	err = s.Stop()
	s.wg.Wait()
	return err
}

func (s *Story) leftovers() {
	for _, l := range s.World.Left() {
		s.Watch.Problem("left: %s", l)
	}
	for _, l := range s.World.Journal() {
		if strings.Contains(l, "exit codes differ") { // no story has a witness that is wrong
			s.Watch.Problem("%s", l)
		}
	}
	b := s.Berth()
	if all, err := b.store.Load(); err != nil || len(all.Sandboxes)+len(all.Containers)+len(all.Damaged) > 0 {
		s.Watch.Problem("left: %d sandbox records, %d container records, %d damaged (%v)",
			len(all.Sandboxes), len(all.Containers), len(all.Damaged), err)
	}
}

// Abandon ends the remaining goroutines after a story that failed.
func (s *Story) Abandon() {
	s.World.KillAt(0, false)
	s.World.Heal()
	_ = s.Kill()
	s.Unsubscribe()
	s.wg.Wait()
}

// Report describes the problems, followed by the journal; "" if there were none.
func (s *Story) Report(err error) string {
	problems := s.Watch.Problems()
	if err == nil && len(problems) == 0 {
		return ""
	}
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "%v\n", err)
	}
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	names := slices.Sorted(maps.Keys(s.ids))
	for _, n := range names {
		fmt.Fprintf(&b, "  %s is %s\n", n, world.Short(s.ids[n]))
	}
	fmt.Fprintf(&b, "what happened:\n%s\n", strings.Join(s.World.Journal(), "\n"))
	return b.String()
}
