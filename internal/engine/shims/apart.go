// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"slices"
	"time"
)

const (
	// loggerProgram keeps the pipes of a container. Shims start it, and berth where one has ended.
	loggerProgram = "berth-logger"
	// lookInterval is how often berth's own group is looked over for processes that nothing has
	// announced: a logger that was replaced, or started before its shim was moved.
	lookInterval = 30 * time.Second
)

// Apart is a control group that a signal to berth's unit does not reach.
type Apart interface {
	// Left lists the processes in berth's own group, without berth.
	Left() ([]int, error)
	// Move moves a process into the group. Moving one that has ended succeeds.
	Move(pid int) error
	// Remove removes the group if it is empty.
	Remove()
}

// RunApart keeps shims and loggers out of berth's own control group, in which they begin, until ctx
// ends: those that an earlier berth has left there, too. They outlive berth, and so must not get a
// signal that is sent to all processes of its unit. Nothing waits for the moves, which can take the
// kernel some time.
func (s *Shims) RunApart(ctx context.Context) error {
	if s.apart == nil {
		return nil
	}
	defer s.apart.Remove()
	said := false
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		if err := s.moveApart(); err != nil && !said {
			said = true
			s.log.Warn("shims stay in the cgroup of berth's unit: a signal to the whole unit would end their pods", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.appeared:
		case <-look.C:
		}
	}
}

// moveApart moves the shims and loggers that are in berth's own group. It looks again after a move:
// a shim may have started a logger before it was moved.
func (s *Shims) moveApart() error {
	own, err := readPlace(s.processes.proc, "self")
	if err != nil {
		return err
	}
	for moved := true; moved; {
		moved = false
		pids, err := s.apart.Left()
		if err != nil {
			return err
		}
		slices.Sort(pids)
		for _, pid := range pids {
			_, ok, err := recognise(s.processes.proc, pid, own, []string{loggerProgram})
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if err := s.apart.Move(pid); err != nil {
				return err
			}
			moved = true
		}
	}
	return nil
}

// Killed reports whether the clean-up after the dead shim of a pod may have killed what ran in it,
// before its release: the shim is known and has ended, or, if it died while berth was away, is not
// found on the node. The death of a shim that pods share kills nothing. If the node cannot be
// looked over, nothing is claimed.
func (s *Shims) Killed(ctx context.Context, pod string) bool {
	switch {
	case s.nowhere || s.Key(pod) != pod:
		return false
	case s.Knows(pod) || !s.inside:
		return s.HasEnded(pod)
	}
	found, err := s.processes.find(ctx)
	return err == nil && !slices.ContainsFunc(found, func(p process) bool { return isShim(p.args, pod) })
}
