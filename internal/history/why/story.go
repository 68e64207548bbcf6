// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"slices"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/history/recorder"
)

// story is what the entries of one pod say, of all its attempts.
type story struct {
	name       string             // NAMESPACE/POD
	containers map[string][]*life // by name, in their order
	crashes    map[string]event.ContainerCrashed
	failures   map[string]int        // creations of a container that have failed, by its name
	reboots    []clock.Instant       // the first start of berth after each
	shutdowns  []clock.Instant       // when berth was told that the machine is shut down
	steps      []recorder.Entry      // settings of the clock
	ended      map[string]event.Exit // by ID: ends that are not on record yet

	ready        clock.Instant // the latest sandbox was
	notMade      *failure      // the latest sandbox that was not
	notMadeTimes int
	stops        map[string][]clock.Instant // by sandbox
	pulls        map[string]*failure        // by what was pulled; without those that succeeded later
	refused      map[string]*failure        // by container; likewise
}

// failure is the latest of something that did not succeed.
type failure struct {
	id    string
	at    clock.Instant
	err   string
	times int
}

// life is what happened to one container.
type life struct {
	id    string
	names event.Names
	first clock.Instant // of its entries

	created, running, removed clock.Instant

	profile     string   // its seccomp profile from a registry
	failure     *failure // of its creation
	silent      clock.Instant
	path        string // of what is silent
	startFailed string
	stops       []stopAsked
	cutOff      bool           // a stop went on without its call
	held        *event.EndHeld // what keeps it from its end since it was killed
	exit        *event.Exit
	reported    *event.Exit // by a witness
	unsettled   *failure    // of the last attempt to record the end
	shimDied    bool
	unread      bool   // when it ended, nobody could read what it wrote
	survived    uint64 // kills by the OOM killer
}

// stopAsked is a stop that was asked for.
type stopAsked struct {
	event.StopRequested
	at clock.Instant
}

// tell reads the entries.
func tell(found recorder.Answer) *story {
	s := &story{
		name:       found.Names.Namespace + "/" + found.Names.Pod,
		containers: map[string][]*life{},
		crashes:    map[string]event.ContainerCrashed{},
		failures:   map[string]int{},
		stops:      map[string][]clock.Instant{},
		pulls:      map[string]*failure{},
		refused:    map[string]*failure{},
	}
	lives := map[string]*life{}
	for _, n := range found.Entries {
		if n.Event == nil {
			continue
		}
		if n.ID == "" {
			s.noteNode(n)
			continue
		}
		names := found.Of[n.ID]
		if names.Container == "" {
			s.notePod(n)
			continue
		}
		l := lives[n.ID]
		if l == nil {
			l = &life{id: n.ID, names: names, first: n.At}
			lives[n.ID] = l
			s.containers[names.Container] = append(s.containers[names.Container], l)
		}
		s.noteContainer(l, n)
	}
	for _, list := range s.containers {
		slices.SortStableFunc(list, func(x, y *life) int {
			return cmp.Or(cmp.Compare(x.names.Attempt, y.names.Attempt), x.first.Compare(y.first))
		})
	}
	return s
}

// noteNode takes note of what happened to the node. A pull that was for no pod explains none.
func (s *story) noteNode(n recorder.Entry) {
	if e, ok := n.Event.(event.BerthStarted); ok && (e.After == event.AfterReboot || e.After == event.AfterShutdown) {
		s.reboots = append(s.reboots, n.At)
	}
	if _, ok := n.Event.(event.ClockSet); ok {
		s.steps = append(s.steps, n)
	}
	if _, ok := n.Event.(event.MachineShutDown); ok {
		s.shutdowns = append(s.shutdowns, n.At)
	}
}

// notePod takes note of what happened to a sandbox.
func (s *story) notePod(n recorder.Entry) {
	switch e := n.Event.(type) {
	case event.SandboxReady:
		s.ready, s.notMadeTimes = n.At, 0
	case event.SandboxNotMade:
		s.notMadeTimes++
		s.notMade = &failure{id: n.ID, at: n.At, err: e.Err}
	case event.StopRequested:
		s.stops[n.ID] = append(s.stops[n.ID], n.At)
	case event.ImageNotPulled:
		again(s.pulls, "image "+e.Image, n, e.Err)
	case event.ImagePulled:
		delete(s.pulls, "image "+e.Image)
	case event.ProfileNotPulled:
		again(s.pulls, "seccomp profile "+e.Profile, n, e.Err)
	case event.ProfilePulled:
		delete(s.pulls, "seccomp profile "+e.Profile)
	case event.ImageRefused:
		again(s.refused, e.Container, n, e.Err)
	}
}

func again(of map[string]*failure, key string, n recorder.Entry, err string) {
	f := of[key]
	if f == nil {
		f = &failure{}
		of[key] = f
	}
	f.id, f.at, f.err = n.ID, n.At, err
	f.times++
}

// noteContainer takes note of what happened to a container.
func (s *story) noteContainer(l *life, n recorder.Entry) {
	switch e := n.Event.(type) {
	case event.ContainerCreated:
		l.created, l.profile = n.At, e.Profile
		delete(s.refused, l.names.Container)
		delete(s.failures, l.names.Container)
	case event.ContainerNotMade:
		l.failure = &failure{id: n.ID, at: n.At, err: e.Err}
		s.failures[l.names.Container]++
	case event.HostPathSilent:
		l.silent, l.path = n.At, e.Path
	case event.ContainerRunning:
		l.running = n.At
	case event.StartFailed:
		l.startFailed = e.Err
	case event.StopRequested:
		l.stops = append(l.stops, stopAsked{e, n.At})
	case event.StopGoesOn:
		l.cutOff = true
	case event.ExitReported:
		if l.reported == nil || !l.reported.Measured {
			l.reported = &e.Exit
		}
	case event.AttemptFailed:
		if e.Step == "settle" {
			l.unsettled = &failure{id: n.ID, at: n.At, err: e.Err}
		}
	case event.EndHeld:
		l.held = &e
	case event.ExitSettled:
		l.exit = &e.Exit
	case event.ExitCorrected:
		l.exit = &e.Exit
	case event.ExitRecalled:
		l.exit = &e.Exit
	case event.ShimDied:
		l.shimDied = true
	case event.LoggerKilled:
		l.unread = true
	case event.OOMKillSurvived:
		l.survived = max(l.survived, e.Kills)
	case event.ContainerCrashed:
		s.crashes[l.id] = e
	case event.Removed:
		l.removed = n.At
	}
}

// name returns NAMESPACE/POD/CONTAINER.
func (l *life) name() string { return l.names.Namespace + "/" + l.names.Name() }

// lastStop returns the last stop that was asked for before the end.
func (l *life) lastStop() (stopAsked, bool) {
	for _, s := range slices.Backward(l.stops) {
		if !s.at.After(l.exit.Ended) {
			return s, true
		}
	}
	return stopAsked{}, false
}

// shutDownAround reports whether the machine was being shut down when a container ended without a
// request. systemd stops the units beside each other, so that berth may hear of it later than the
// processes do, by the time that a kubelet takes to end.
func (s *story) shutDownAround(ended clock.Instant) bool {
	const apart = 2 * time.Minute
	return slices.ContainsFunc(s.shutdowns, func(at clock.Instant) bool { return at.Sub(ended).Abs() < apart })
}

// rebootedAfter reports whether the node was rebooted between the start of a container and its end,
// as far as anybody knows that.
func (l *life) rebootedAfter(reboots []clock.Instant) bool {
	began := cmp.Or(l.running, l.created, l.first)
	return slices.ContainsFunc(reboots, began.Before)
}

// podStopped reports whether the pod of a container was stopped with it.
func (s *story) podStopped(l *life, stop stopAsked) bool {
	if stop.Pod {
		return true
	}
	return slices.ContainsFunc(s.stops[l.names.Sandbox], func(at clock.Instant) bool { return !at.Before(stop.at) })
}
