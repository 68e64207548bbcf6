// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"berth/test/world"
)

// Random plays a number of steps that r chooses: a client that asks for anything at any time,
// processes that end, and everything that can break. Finish mends permanent faults.
func (s *Story) Random(r *rand.Rand, steps int) error {
	s.World.Exact = r.IntN(4) > 0
	s.World.Keeper = r.IntN(3) == 0
	s.World.ShimDelay = time.Duration(r.IntN(20)) * time.Millisecond
	if r.IntN(3) == 0 { // shims that publish late
		s.World.Gap = time.Duration(1+r.IntN(300)) * time.Millisecond
		s.World.ShimQueue = r.IntN(4)
	}
	if err := s.Boot(); err != nil {
		return err
	}
	for range steps {
		if b := s.Berth(); b == nil || b.Dead() {
			if r.IntN(3) == 0 {
				s.away(r)
			}
			if err := s.Boot(); err != nil {
				if b := s.Berth(); b == nil && s.World.Killed() {
					s.World.KillAt(0, false)
					continue // killed while it came up
				}
				return err
			}
		}
		s.turn()
		if s.Vain != nil && s.Vain.IntN(3) == 0 {
			s.askInVain(s.Vain)
		}
		s.step(r)
		time.Sleep(pause(r))
		s.turn()
		if r.IntN(8) == 0 {
			_ = s.Look(false) // an error means that berth is away
		}
	}
	if s.Vain != nil && s.Vain.IntN(3) == 0 {
		return s.withoutKernel(s.Vain)
	}
	return nil
}

// withoutKernel starts a berth that cannot ask the kernel about any process, after some have ended:
// the facts of their shims are reported all the same.
func (s *Story) withoutKernel(r *rand.Rand) error {
	s.World.KillAt(0, false)
	s.World.Heal()
	if s.World.ContainerdDown() {
		s.World.StartContainerd()
	}
	if err := s.Boot(); err != nil {
		return err
	}
	on := s.handlerFor(r)
	for _, err := range []error{
		s.RunPod("p4", on), s.Create("p4/c4"), s.Start("c4"), s.Create("p4/c5"), s.Start("c5"), s.Kill(),
	} {
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"c4", anyContainer(r), anyContainer(r)} {
		s.World.Exit(s.ID(name), uint32(r.IntN(256)), false)
	}
	lift := s.World.Refuse("watch", "", world.InVain[r.IntN(len(world.InVain))])
	defer lift()
	if err := s.Boot(); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	s.World.Exit(s.ID("c5"), uint32(r.IntN(256)), false)
	time.Sleep(5 * time.Minute)
	return s.lookBehindKernel()
}

// pause is none, short or long.
func pause(r *rand.Rand) time.Duration {
	switch r.IntN(8) {
	case 0, 1, 2:
		return 0
	case 3, 4, 5:
		return time.Duration(r.IntN(50)) * time.Millisecond
	case 6:
		return time.Duration(r.IntN(5000)) * time.Millisecond
	default:
		return time.Duration(r.IntN(120)) * time.Second
	}
}

func anyPod(r *rand.Rand) string       { return fmt.Sprint("p", 1+r.IntN(3)) }
func anyContainer(r *rand.Rand) string { return fmt.Sprintf("%s/c%d", anyPod(r), 1+r.IntN(3)) }

// away plays the changes of pods while no berth runs.
func (s *Story) away(r *rand.Rand) {
	for range 1 + r.IntN(3) {
		switch r.IntN(4) {
		case 0, 1:
			s.World.Exit(s.ID(anyContainer(r)), uint32(r.IntN(256)), false)
		case 2:
			s.World.KillShim(s.ID(anyPod(r)))
		case 3:
			s.outage(r)
		}
		time.Sleep(pause(r))
		s.turn()
	}
}

// outage stops containerd for a while.
func (s *Story) outage(r *rand.Rand) {
	if s.World.ContainerdDown() {
		return
	}
	s.World.StopContainerd()
	d := time.Duration(r.IntN(90_000)) * time.Millisecond
	s.wg.Go(func() {
		time.Sleep(d)
		s.turn()
		s.World.StartContainerd()
	})
}

// operations are the operations that may fail, stall, or take place without an answer.
var operations = []string{
	"create-sandbox", "delete-sandbox", "create-container", "delete-container", "prepare-snapshot", "remove-snapshot",
	"create-task", "start-task", "kill-task", "delete-task", "get-task", "wait-task", "list-containers",
	"list-sandboxes", "list-tasks", "walk-snapshots", "netns", "netns-remove", "cni-add", "sysctls", "cni-del",
	"files", "hosts", "files-remove", "files-list", "commit", "watch", "signal", "mounts",
	"start-shim", "end-shim", "pins", "pins-check", "pins-remove", "pins-list",
	"stdio", "stdio-open", "stdio-remove", "stdio-started", "stdio-run", "stdio-drain", "stdio-flush",
}

// questions are the questions to the kernel, /proc, cgroups, containerd and shims that may fail.
var questions = []string{
	"watch", "look", "signal", "watch", "look", "signal", "cgroup", "oom", "oom-below", "limit-hits", "watch-oom", "kill-all", "end-group", "search",
	"get-task", "wait-task", "kill-task", "delete-task", "end-shim", "get-container", "list-tasks", "list-containers",
	"pins-list", "netns-list", "files-list", "stat-snapshot", "mounts",
	"pins-check", "pins-check", "stdio-open", "stdio-started", "stdio-drain", "stdio-flush",
}

// askInVain makes the next few of some question fail, or all of them for a while. Sometimes all
// questions to the kernel about a process fail, and a shim dies meanwhile.
func (s *Story) askInVain(r *rand.Rand) {
	op, why := questions[r.IntN(len(questions))], world.InVain[r.IntN(len(world.InVain))]
	d := time.Duration(r.IntN(60_000)) * time.Millisecond
	refuse := func(op string) {
		lift := s.World.Refuse(op, "", why)
		s.wg.Go(func() { time.Sleep(d); s.turn(); lift() })
	}
	switch r.IntN(8) {
	case 0:
		refuse("watch")
		refuse("look")
		if r.IntN(2) == 0 {
			s.World.KillShim(s.ID(anyPod(r)))
		}
	case 1, 2:
		refuse(op)
	default:
		s.World.AskInVain(op, "", 1+r.IntN(6), why)
	}
}

func (s *Story) step(r *rand.Rand) {
	name, pod := anyContainer(r), anyPod(r)
	op := operations[r.IntN(len(operations))]
	switch n := r.IntN(100); {
	case n < 12:
		on := handler(r)
		s.Background(func() error { return s.made(pod, func() error { return s.RunPod(pod, on) }) })
	case n < 24:
		s.Background(func() error { return s.made(name, func() error { return s.Create(name) }) })
	case n < 38:
		s.Background(func() error { return s.Start(name) })
	case n < 54:
		oom := r.IntN(6) == 0
		code := uint32(r.IntN(256))
		if oom {
			code = 137
		}
		s.World.Exit(s.ID(name), code, oom)
	case n < 60:
		d := time.Duration(r.IntN(3)*r.IntN(30)) * time.Second
		s.Background(func() error { return s.StopUnit(name, d) })
	case n < 63:
		s.Background(func() error { return s.StopUnit(pod, 0) })
	case n < 67:
		s.Background(func() error { return s.Remove(name) })
	case n < 69:
		s.Background(func() error { return s.Remove(pod) })
	case n < 75:
		s.World.Fail(op, "", 1+r.IntN(4))
	case n < 79:
		if op != "signal" && op != "watch" { // system calls do not stall
			s.World.Stall(op, "", 1+r.IntN(3), time.Duration(r.IntN(60_000))*time.Millisecond)
		}
	case n < 80:
		if ofContainerd(op) {
			s.World.Abandon(op, "", time.Duration(r.IntN(300))*time.Second)
		}
	case n < 81:
		if op != "commit" { // a database whose answer is lost is one that crashed: that is KillAt's
			s.World.Lose(op, "")
		}
	case n < 84:
		s.World.Swallow(r.IntN(3), r.IntN(2))
	case n < 86:
		s.World.KillShim(s.ID(pod))
	case n < 88:
		s.outage(r)
	case n < 90:
		s.World.DiskFull(true)
		d := time.Duration(r.IntN(60_000)) * time.Millisecond
		s.wg.Go(func() { time.Sleep(d); s.turn(); s.World.DiskFull(false) })
	case n < 93:
		s.World.KillAt(1+r.IntN(20), r.IntN(2) == 0)
	case n < 95:
		_ = s.Kill()
	case n < 96:
		_ = s.Stop()
	case n < 98:
		s.Unsubscribe()
	default:
		s.Subscribe()
	}
}

// ofContainerd reports whether containerd may carry out an operation after its caller has given up.
// It does not start a shim then: it kills the program that starts one when the call ends.
func ofContainerd(op string) bool {
	kind, _, compound := strings.Cut(op, "-")
	return compound && op != "start-shim" && kind != "netns" && kind != "cni" && kind != "files" && kind != "pins" && kind != "stdio"
}

// handler is mostly one whose sandboxes have no process, or the default one, and sometimes one
// whose processes the kernel cannot see.
func handler(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		return "vm"
	case 1, 2:
		return world.Pinned
	case 3, 4:
		return world.Grouped
	default:
		return ""
	}
}
