// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/world"
)

// settleTime is longer than the longest back-off and the attempt after it, and than what it takes
// to find what containerd made for a creation that was given up: its bound and two relists.
const settleTime = 17 * time.Minute

// Finish ends the story: it mends whatever is broken and waits. What berth reports then must be
// true, and when every pod is removed nothing may be left.
func (s *Story) Finish() error {
	s.World.KillAt(0, false)
	s.World.Heal()
	if s.World.ContainerdDown() {
		s.World.StartContainerd()
	}
	if err := s.Boot(); err != nil {
		return err
	}
	s.Subscribe()
	time.Sleep(settleTime)
	if err := s.Look(true); err != nil {
		return err
	}
	for _, l := range s.Berth().Core.Pods.Lanes() {
		s.Watch.Problem("lane %s is not idle: %+v", world.Short(l.ID), l)
	}
	err := s.call(func(ctx context.Context, b *Berth) error {
		list, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, p := range list.GetItems() {
			if _, err := b.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				s.Watch.Problem("pod %s cannot be removed: %v", world.Short(p.GetId()), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
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

// Abandon ends what still runs after a story that failed.
func (s *Story) Abandon() {
	s.World.KillAt(0, false)
	s.World.Heal()
	_ = s.Kill()
	s.Unsubscribe()
	s.wg.Wait()
}

// Report says what went wrong, followed by the journal; "" when nothing did.
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
