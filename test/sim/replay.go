// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/test/world"
	"berth/tools/bundle"
)

// Replay plays the facts of a bundle (see package bundle) in the story, which is new: its sandboxes
// and containers are made, started, stopped and removed when they were, their processes end when
// and how they did, each witness learns of that when it did, and berth, containerd, shims, the disk
// of the records and the machine go and come. It returns how the verdicts of berth, as it is now,
// differ from those in the bundle: a container a line.
//
// The true end of a process is the one that the kernel has measured, or else another witness. That
// berth reports it is for [Watch] to judge, as in every story.
func (s *Story) Replay(b *bundle.Bundle) (differ []string, err error) {
	i := newIncident(b)
	s.World.Exact, s.World.Keeper = i.exact, i.keeper
	i.s, i.began = s, time.Now()
	for n, st := range i.steps {
		time.Sleep(time.Until(i.began.Add(st.at.Sub(i.steps[0].at))))
		if st.rank != rankCall {
			s.turn()
		}
		s.transcript.step(st.what)
		if err := st.do(); err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", n+1, st.what, err)
		}
	}
	time.Sleep(5 * time.Second)
	s.World.Heal()
	if err := s.Boot(); err != nil {
		return nil, err
	}
	if s.World.ContainerdDown() {
		s.World.StartContainerd()
	}
	time.Sleep(time.Minute)
	if err := s.Look(false); err != nil {
		return nil, err
	}
	return i.differ(), nil
}

// Play plays a bundle in a story of its own, which it finishes. It must be called in a bubble of
// testing/synctest. dir is for berth's records. report describes the problems, or is "", and
// happened lists the steps that were played and the reports after each.
func Play(ctx context.Context, dir string, seed uint64, b *bundle.Bundle) (differ []string, report, happened string) {
	s := NewStory(ctx, dir, seed)
	differ, err := s.Replay(b)
	happened = s.transcript.String()
	if err == nil {
		err = s.Finish(Late)
	}
	if err != nil {
		s.Abandon()
	}
	s.World.End()
	return differ, s.Report(err), happened
}

// incident is a bundle that is being turned into steps.
type incident struct {
	s      *Story
	began  time.Time
	bundle *bundle.Bundle
	inside bool // containerd goes and comes with berth
	exact  bool
	keeper bool

	units []*part // sandboxes before their containers, in their order
	byID  map[string]*part
	lives []span // of berth
	steps []step
}

// part is a sandbox or container of a bundle.
type part struct {
	id     string // in the bundle
	name   string // in the story
	of     event.Names
	pod    *part // of a container
	pinned bool
	host   bool
	system bool
	number int // of containers of a pod so far

	made, started clock.Instant // when that began; zero: never
	unstarted     bool          // its start failed
	end           *ending
	ready         chan struct{} // closed after the last call about it that was begun; nil: none was
}

// ending is the end of a process, and the reports about it.
type ending struct {
	at       clock.Instant
	told     event.Exit
	evidence event.Evidence
	by       string // an entry of which kind has told it
}

type span struct {
	from, to clock.Instant
	how      string // it ended
}

// step is one step of the replay. Steps of the same instant are in the order of their ranks.
type step struct {
	at   clock.Instant
	rank int
	what string
	do   func() error
}

const (
	rankDown = iota // things that go
	rankUp          // things that come
	rankCall        // a client calls
	rankFact        // a process ends
)

func (i *incident) add(at clock.Instant, rank int, what string, do func() error) {
	i.steps = append(i.steps, step{at, rank, what, do})
}

func newIncident(b *bundle.Bundle) *incident {
	i := &incident{
		bundle: b,
		inside: b.Configuration.GetContainerd() != "beside",
		exact:  b.Manifest.Exact,
		byID:   map[string]*part{},
	}
	i.findUnits()
	i.findLives()
	i.findEnds()
	i.findLost()
	i.playLives()
	for _, u := range i.units {
		i.playUnit(u)
	}
	i.playEntries()
	slices.SortStableFunc(i.steps, func(a, b step) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.rank, b.rank))
	})
	return i
}

// first is the instant of the first entry, before which everything began that has no beginning.
func (i *incident) first() clock.Instant {
	if len(i.bundle.Entries) == 0 {
		return clock.Stamped(i.bundle.Manifest.From)
	}
	at := i.bundle.Entries[0].Entry.At
	for _, e := range i.bundle.Entries {
		if e.Entry.At.Before(at) {
			at = e.Entry.At
		}
	}
	return at
}

// unit returns the sandbox or container of an ID, which it makes from its names.
func (i *incident) unit(id string, of event.Names) *part {
	if u := i.byID[id]; u != nil || of == (event.Names{}) {
		return u
	}
	u := &part{id: id, of: of, host: true, pinned: true}
	if of.Container == "" {
		u.name = fmt.Sprint("p", len(i.byID)+1)
	} else {
		if u.pod = i.unit(of.Sandbox, event.Names{Namespace: of.Namespace, Pod: of.Pod, UID: of.UID}); u.pod == nil {
			return nil
		}
		u.pod.number++
		u.name = fmt.Sprintf("%s/c%d-%d", u.pod.name, len(i.byID), u.pod.number)
	}
	i.byID[id] = u
	i.units = append(i.units, u)
	return u
}

func (i *incident) findUnits() {
	first := i.first()
	earlier := first.Add(-2 * time.Second)
	for _, e := range i.bundle.Entries {
		u := i.unit(e.Entry.ID, e.Of)
		if u == nil {
			continue
		}
		switch n := e.Entry.Event.(type) {
		case event.SandboxReady:
			u.made, u.started, u.pinned = e.Entry.At.Add(-n.Took), e.Entry.At, n.Pinned
		case event.ContainerCreated:
			u.made = e.Entry.At.Add(-n.Took)
		case event.ContainerRunning:
			if u.started.IsZero() {
				u.started = e.Entry.At.Add(-n.Took)
			}
		case event.StartFailed:
			u.started, u.unstarted = e.Entry.At, true
		}
	}
	for _, r := range i.bundle.Records {
		u := i.byID[r.ID]
		if u == nil && r.State != "EXITED" && r.State != "NOTREADY" {
			u = i.unit(r.ID, r.Of)
		}
		if u == nil {
			continue
		}
		u.host, u.system = r.Host, r.Systemd
		if r.Of.Container == "" {
			u.pinned = r.Pinned
		}
		if u.started.IsZero() && u.pod != nil && clock.Stamped(r.Started).After(first) {
			u.started = clock.Stamped(r.Started) // the entry was lost in a kill
		}
		if u.started.IsZero() && (!r.Started.IsZero() && clock.Stamped(r.Started).Before(first) || r.State == "RUNNING") {
			u.started = earlier.Add(time.Second)
		}
	}
	for _, u := range i.units {
		for ; u != nil; u = u.pod { // a unit without a beginning was there before, and so was its pod
			if u.made.IsZero() || u.pod == nil && u.made.After(first) && i.madeBefore(u) {
				u.made = earlier
			}
		}
	}
	slices.SortStableFunc(i.units, func(a, b *part) int { return a.made.Compare(b.made) })
}

// madeBefore reports whether a container of a sandbox was there before the sandbox's first entry,
// which comes when it is READY.
func (i *incident) madeBefore(p *part) bool {
	return slices.ContainsFunc(i.units, func(u *part) bool { return u.pod == p && u.made.Before(p.made) && !u.made.IsZero() })
}

// findLives finds when berth began and ended.
func (i *incident) findLives() {
	last := i.first()
	i.lives = []span{{from: last.Add(-3 * time.Second)}}
	for _, e := range i.bundle.Entries {
		at := e.Entry.At
		switch n := e.Entry.Event.(type) {
		case event.BerthStarted:
			life := &i.lives[len(i.lives)-1]
			if n.After == "" || len(i.bundle.Entries) > 0 && i.before(at).IsZero() {
				continue // the first of all
			}
			life.how = n.After
			if life.to.IsZero() {
				life.to = i.before(at).Add(time.Millisecond)
			}
			i.lives = append(i.lives, span{from: at})
		case event.BerthStopped:
			i.lives[len(i.lives)-1].to = at
		}
		if at.After(last) {
			last = at
		}
	}
}

// before is the instant of the last entry before an instant; zero: there is none.
func (i *incident) before(at clock.Instant) (last clock.Instant) {
	for _, e := range i.bundle.Entries {
		if e.Entry.At.Before(at) && e.Entry.At.After(last) {
			last = e.Entry.At
		}
	}
	return last
}

// away reports whether no berth ran at an instant, and whether the machine was rebooted then.
func (i *incident) away(at clock.Instant) (away, reboot bool) {
	for n, l := range i.lives {
		if n+1 < len(i.lives) && at.After(l.to) && at.Before(i.lives[n+1].from) {
			return true, l.how == event.AfterReboot
		}
	}
	return false, false
}

// findEnds finds how and when processes ended.
func (i *incident) findEnds() {
	for _, e := range i.bundle.Entries {
		u := i.byID[e.Entry.ID]
		told, ok := bundle.ExitIn(e.Entry.Event)
		if u == nil || !ok {
			continue
		}
		end := &ending{told: told, by: event.Kind(e.Entry.Event)}
		switch n := e.Entry.Event.(type) {
		case event.ExitSettled:
			end.evidence = n.Evidence
		case event.ExitCorrected:
			end.evidence = n.Evidence
		}
		if u.end != nil { // later reports add to it
			if len(end.evidence.Said) < len(u.end.evidence.Said) {
				end.evidence = u.end.evidence
			}
			end.at = u.end.at
		}
		if u.end = end; end.at.IsZero() {
			end.at = e.Entry.At
		}
		if !told.Ended.IsZero() && told.Ended.Before(end.at) {
			end.at = told.Ended
		}
		for _, said := range end.evidence.Said {
			if said.Witness == exit.Kernel && !said.Ended.IsZero() {
				end.at = said.Ended // the best known instant
			}
		}
		if len(end.evidence.Said) > 0 {
			said := end.evidence.Said[0].At
			if end.at.After(said) {
				end.at = said
			}
		}
		if away, _ := i.away(end.at); away {
			i.keeper = i.keeper || i.exact && said(end, exit.Kernel) != nil && said(end, exit.Kernel).Measured
		}
	}
}

// findLost finds the entries of the last moment of a life that are missing because berth was killed
// before they were written.
func (i *incident) findLost() {
	alive := func(at clock.Instant) {
		for n := range i.lives[:len(i.lives)-1] {
			if l, next := &i.lives[n], i.lives[n+1].from; at.After(l.to) && at.Before(next) {
				l.to = at
			}
		}
	}
	for _, u := range i.units {
		e := u.end
		if u.pod != nil && u.started.IsZero() && e != nil {
			u.started = u.made.Add(10 * time.Millisecond)
			if !e.at.After(u.started) {
				u.started = u.made.Add(e.at.Sub(u.made) / 2)
			}
		}
		if !u.started.IsZero() {
			if at := u.started.Add(20 * time.Millisecond); e != nil && !e.at.After(at) {
				alive(u.started.Add(e.at.Sub(u.started) / 2))
			} else {
				alive(at)
			}
		}
		if e != nil && e.by == event.Kind(event.ExitRecalled{}) {
			alive(e.at.Add(20 * time.Millisecond)) // it was settled before the kill
		}
	}
}

// said returns the first report of a witness with a code, or else its first one; nil if there is
// none.
func said(e *ending, by exit.Origin) (first *event.Said) {
	for n := range e.evidence.Said {
		s := &e.evidence.Said[n]
		if s.Witness == by && (first == nil || !first.Measured && s.Measured) {
			first = s
		}
	}
	return first
}

// truth is the true end of a process: the kernel's measurement, or else another witness's, or else
// the kernel's of its first thread alone. measured is false if there is none.
func (e *ending) truth() (code uint32, measured bool) {
	for _, alone := range []bool{false, true} {
		for _, by := range []exit.Origin{exit.Kernel, exit.Task, exit.Stream, exit.Audit} {
			if s := said(e, by); s != nil && s.Measured && s.FirstThread == alone {
				return s.Code, true
			}
		}
	}
	return e.told.Code, e.told.Measured && len(e.evidence.Said) == 0
}

// playLives adds the starts and ends of berth, containerd and the machine.
func (i *incident) playLives() {
	for n, l := range i.lives {
		i.add(l.from, rankUp, "boot berth", func() error {
			if i.inside && i.s.World.ContainerdDown() || n > 0 && i.lives[n-1].how == event.AfterReboot {
				i.s.World.StartContainerd()
			}
			return i.s.Boot()
		})
		if n+1 == len(i.lives) {
			break
		}
		what := "kill berth"
		if l.how == event.AfterStop {
			what = "stop berth"
		}
		i.add(l.to, rankDown, what, func() error {
			end := i.s.Kill
			if l.how == event.AfterStop {
				end = i.s.Stop
			}
			err := end()
			if (i.inside || l.how == event.AfterReboot) && !i.s.World.ContainerdDown() {
				i.s.World.StopContainerd()
			}
			return err
		})
		if l.how == event.AfterReboot {
			i.add(l.to.Add(time.Millisecond), rankDown, "reboot", func() error { i.s.World.Reboot(); return nil })
		}
	}
}

// call begins a call about a unit once those before about it and its pod have their answers.
func (i *incident) call(u *part, at clock.Instant, what string, call func() error) {
	i.add(at, rankCall, what, func() error {
		after := []chan struct{}{u.ready}
		if u.pod != nil {
			after = append(after, u.pod.ready)
		}
		done := make(chan struct{})
		u.ready = done
		i.s.Background(func() error {
			defer close(done)
			for _, c := range after {
				if c != nil {
					<-c
				}
			}
			return call()
		})
		return nil
	})
}

// playUnit adds the life of a sandbox or container.
func (i *incident) playUnit(u *part) {
	if u.pod == nil {
		i.call(u, u.made, "run "+u.name, func() error { return i.s.RunPod(u.name, u.handler()) })
	} else {
		i.call(u, u.made, "create "+u.name, func() error { return i.s.Create(u.name) })
	}
	if e := u.end; u.pod != nil && !u.started.IsZero() {
		fails := u.unstarted || e != nil && e.told.Witness == exit.Start
		i.call(u, u.started, "start "+u.name, func() error {
			if fails {
				i.s.World.Fail("start-task", i.s.ID(u.name), 1)
			}
			return i.s.Start(u.name)
		})
	}
	if u.end != nil && u.end.told.Witness != exit.Start && (u.pod != nil || !u.pinned) {
		i.playEnd(u, u.end)
	}
}

// handler is the one of the simulation that is like the one in the bundle.
func (u *part) handler() string {
	switch {
	case !u.host:
		return "vm"
	case u.system:
		return "scopes"
	case u.pinned:
		return world.Pinned
	}
	return ""
}

// playEnd adds the end of a process.
func (i *incident) playEnd(u *part, e *ending) {
	away, reboot := i.away(e.at)
	code, measured := e.truth()
	if !measured && (reboot || i.endedByReboot(e)) {
		return
	}
	end := world.End{Code: code}
	kernel := said(e, exit.Kernel)
	end.Blind = i.exact && u.host && (kernel == nil || !kernel.Measured) && len(e.evidence.Said) > 0
	if kernel != nil && kernel.FirstThread {
		end.FirstThread = &kernel.Code
	}
	if kernel != nil && !away {
		end.Notice = positive(kernel.At.Sub(e.at))
	}
	for _, by := range []exit.Origin{exit.Task, exit.Stream} {
		if s := said(e, by); s != nil && s.Measured && !away {
			if d := positive(s.At.Sub(e.at)); end.Reap == 0 || d < end.Reap {
				end.Reap = d
			}
		}
	}
	if !measured {
		end.Code = 1 // it ended with some code
		i.add(e.at, rankDown, "kill the shim of "+u.name, func() error { i.killShim(u); return nil })
	}
	if kills := e.evidence.OOMKills; kills > 0 || e.told.OOM {
		at := e.evidence.OOMTo
		switch near := at.IsZero() || at.After(e.at) || e.at.Sub(at) <= time.Second; {
		case near && (kills > i.survived(u) || e.told.OOM):
			end.OOM, end.Limit = true, cmp.Or(e.evidence.OOMLimit, e.told.Limit)
		case !near && kills > i.survived(u):
			i.add(at, rankFact, "oom "+u.name, func() error {
				i.await(u)
				i.s.World.OOMAt(i.s.ID(u.name), e.evidence.OOMLimit)
				return nil
			})
		}
	}
	i.add(e.at, rankFact, fmt.Sprintf("%s ends with %d", u.name, end.Code), func() error {
		i.await(u)
		i.s.World.EndAs(i.s.ID(u.name), end) // or a stop has ended it, as it did then
		return nil
	})
}

// endedByReboot reports whether an end without any facts was found after a reboot.
func (i *incident) endedByReboot(e *ending) bool {
	for n := range i.lives[1:] {
		next := i.lives[n+1]
		if i.lives[n].how == event.AfterReboot && !e.at.Before(i.lives[n].to) && e.at.Sub(next.from) < time.Minute {
			return true
		}
	}
	return false
}

func positive(d time.Duration) time.Duration { return max(d, time.Microsecond) }

// survived counts the OOM kills that were reported as survived.
func (i *incident) survived(u *part) (kills uint64) {
	for _, e := range i.bundle.Entries {
		if n, ok := e.Entry.Event.(event.OOMKillSurvived); ok && e.Entry.ID == u.id {
			kills += n.Kills
		}
	}
	return kills
}

// await waits until the process of u runs, for two seconds at most.
func (i *incident) await(u *part) {
	for range 2000 {
		if id := i.s.ID(u.name); id != "" && i.s.World.Runs(id) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (i *incident) killShim(u *part) {
	if shim := i.s.World.ShimOf(i.s.ID(u.name)); shim != "" {
		i.s.World.KillShim(shim)
	}
}

// playEntries adds the other entries.
func (i *incident) playEntries() {
	full := false
	for _, e := range i.bundle.Entries {
		at, u := e.Entry.At, i.byID[e.Entry.ID]
		if u == nil {
			switch e.Entry.Event.(type) {
			case event.ContainerdLost:
				i.add(at, rankDown, "containerd ends", func() error {
					if !i.s.World.ContainerdDown() {
						i.s.World.StopContainerd()
					}
					return nil
				})
			case event.ContainerdConnected:
				i.add(at.Add(-time.Millisecond), rankUp, "containerd starts", func() error {
					if i.s.World.ContainerdDown() && i.s.Berth() != nil {
						i.s.World.StartContainerd()
					}
					return nil
				})
			}
			continue
		}
		switch n := e.Entry.Event.(type) {
		case event.StopRequested:
			if !n.Pod {
				i.call(u, at, "stop "+u.name, func() error { return i.s.StopUnit(u.name, n.Timeout) })
			} else if u.pod != nil {
				i.beside(at, "stop "+u.pod.name, func() error { return i.s.StopUnit(u.pod.name, 0) })
			}
		case event.RemovalRequested:
			i.beside(at, "remove "+u.name, func() error { return i.s.Remove(u.name) })
		case event.OOMKillSurvived:
			// It is noted once the kill can explain no end any more, a second later at least.
			i.add(at.Add(-time.Second), rankFact, "oom "+u.name, func() error {
				i.await(u)
				for range min(n.Kills, 16) {
					i.s.World.OOMAt(i.s.ID(u.name), n.Limit)
				}
				return nil
			})
		case event.ExitDoubted:
			i.add(at, rankDown, "the end of "+u.name+" is doubted", func() error {
				if n.Witness == exit.Stream && n.Code == 137 && i.s.World.ShimOf(i.s.ID(u.name)) != "" {
					i.killShim(u)
				} else if n.Witness == exit.Stream {
					i.s.World.Claim(i.s.ID(u.name), n.Code)
				}
				return nil
			})
		case event.ShimDied:
			if u.end != nil {
				i.add(u.end.at.Add(-time.Millisecond), rankDown, "the shim of "+u.name+" dies", func() error { i.killShim(u); return nil })
			}
		case event.AttemptFailed:
			switch {
			case n.Step == "settle" && strings.Contains(n.Err, "no space left") && !full:
				full = true
				i.add(at.Add(-time.Millisecond), rankDown, "the disk is full", func() error { i.s.World.DiskFull(true); return nil })
			case n.Step == "release" && n.Attempt <= 1:
				i.add(at.Add(-time.Millisecond), rankDown, "the deletion of "+u.name+" fails", func() error {
					i.s.World.Fail("delete-task", i.s.ID(u.name), 1)
					return nil
				})
			}
		case event.ExitSettled:
			if full {
				full = false
				i.add(at.Add(-time.Millisecond), rankUp, "the disk has room", func() error { i.s.World.DiskFull(false); return nil })
			}
		}
	}
}

// beside begins a call that waits for none before.
func (i *incident) beside(at clock.Instant, what string, call func() error) {
	i.add(at, rankCall, what, func() error {
		i.s.Background(call)
		return nil
	})
}

// differ compares the verdicts.
func (i *incident) differ() (list []string) {
	for _, want := range i.bundle.Verdicts() {
		u := i.byID[want.ID]
		if u == nil {
			continue // only its end is known
		}
		name := want.Of.Namespace + "/" + want.Of.Name()
		st := i.s.Watch.Exit(i.s.ID(u.name))
		if st == nil {
			list = append(list, fmt.Sprintf("%s (%s): the bundle has %s, and it has not ended", name, u.name, want))
			continue
		}
		got := bundle.VerdictOf(want.ID, want.Of, event.Exit{
			Code:     uint32(st.GetExitCode()),
			Measured: st.GetReason() != exit.ReasonUnknown,
			Reason:   st.GetReason(),
			OOM:      want.OOM,
		})
		if got.Reason == exit.ReasonOOMKilled || want.Reason == exit.ReasonOOMKilled {
			got.OOM = got.Reason == exit.ReasonOOMKilled // CRI tells it by the reason alone
		}
		if got != want {
			list = append(list, fmt.Sprintf("%s (%s): the bundle has %s, and it is %s", name, u.name, want, got))
		}
	}
	return list
}
