// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"path/filepath"
	"time"

	"berth/internal/event"
	"berth/internal/exit"
	"berth/internal/pidfd"
	"berth/internal/state"
)

// armOOM asks the kernel to notify of OOM kills in the group of u from now on, and reads what the
// counter says already: that is what happened while no berth was there. It is called before the
// program runs, and by the next berth. It reports whether there were kills that are not on record.
func (p *processes) armOOM(u *unit) (more bool) {
	dir := u.process().Cgroup
	if u.isSandbox() || dir == "" || u.now().Phase.Ended() {
		return false
	}
	all, err := p.cgroups.WatchOOM(u.id, dir)
	if absent(err) != nil {
		p.obs.Note(u.id, event.OOMNotWatched{Err: err.Error()})
	}
	kills, kerr := p.cgroups.OOMKills(dir)
	hits, herr := p.cgroups.LimitHits(dir)
	if herr != nil {
		hits = nil
	}
	a, _ := p.kernel.Look(u.id)
	e := &u.oom
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed, e.all = err == nil, all
	if kerr != nil {
		return false
	}
	st := u.now()
	if e.counter.at.IsZero() { // what is on record was read then or later
		e.counter.kills, e.counter.survived, e.counter.at = st.OOMKills, st.OOMKills, st.StartedAt
		if st.OOMKilledAt.After(st.StartedAt) {
			e.counter.at = st.OOMKilledAt
		}
	}
	grown := e.counter.read(kills, hits, time.Now(), p.ownsGroup(u), false, false)
	e.counter.last.late = grown > 0 && a != pidfd.Alive
	return grown > 0
}

// ownsGroup reports whether the group above that of u is its pod's alone, as the kubelet makes it.
func (p *processes) ownsGroup(u *unit) bool {
	return u.pod.sandbox.Config.GetLinux().GetCgroupParent() != ""
}

// sampleOOM reads the counter of OOM kills of a container that has not ended, as far as anybody
// knows.
func (p *processes) sampleOOM(u *unit) {
	dir := u.process().Cgroup
	n, err := p.cgroups.OOMKills(dir)
	if err == nil {
		p.countOOM(u, dir, n, false)
	} else if absent(err) != nil {
		u.oom.miss()
	}
}

// countOOM takes a reading of the counter in the group dir; the last one after the end.
func (p *processes) countOOM(u *unit, dir string, kills uint64, last bool) {
	e := &u.oom
	var hits []uint64
	if e.isBelow(kills) && dir != "" { // else the limits do not matter
		if now, err := p.cgroups.LimitHits(dir); err == nil {
			hits = now
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known {
		return
	}
	e.counter.read(kills, hits, time.Now(), p.ownsGroup(u), e.armed, e.all)
	e.known = last
}

// readOOM reads the counter of OOM kills of a container that ended. It is called first of all,
// since the cgroup can vanish with the container: systemd removes a scope once it is empty, and on
// a busy host does so before anybody has read the counter. The counter of the pod's group says then
// what the container's would have said. Where that one does not say it either, containerd's report
// counts. An error says that the counter is there, and could not be read.
func (p *processes) readOOM(u *unit, f exit.Fact) error {
	err := p.readOwnOOM(u, f)
	if absent(err) != nil || err == nil {
		return err
	}
	if n := p.restOfPodOOM(u); n > 0 {
		p.obs.Note(u.id, event.OOMKillOfPod{})
		p.countOOM(u, "", n, true)
		return nil
	}
	p.obs.Note(u.id, event.OOMCounterGone{Err: err.Error()})
	return nil
}

// readOwnOOM reads the counter of the container's own group, unless it was read already. It waits
// for nothing, and may be called as soon as a witness reports the end.
func (p *processes) readOwnOOM(u *unit, f exit.Fact) error {
	dir := cmp.Or(u.process().Cgroup, p.restoredGroup(u))
	if u.isSandbox() || f.Origin == exit.Start || dir == "" || u.oom.isKnown() {
		return nil
	}
	n, err := p.cgroups.OOMKills(dir)
	if err == nil {
		p.countOOM(u, dir, n, true)
	}
	return err
}

// countPodOOM notes what the pod's group had counted before the process of u runs. That is needed
// only where systemd removes the process's own group, and says something only where the pod has a
// group of its own, which the kubelet makes.
func (p *processes) countPodOOM(u *unit, proc *state.Process) {
	if u.isSandbox() || !u.handler.SystemdCgroup || !p.ownsGroup(u) || proc.Cgroup == "" {
		return
	}
	proc.PodOOMKills, proc.PodOOMKillsKnown = p.podOOM(u, filepath.Dir(proc.Cgroup))
}

// restOfPodOOM returns how many OOM kills the pod's group counted since the process of u ran, other
// than those in other containers of the pod: the kills in the group of u, which has vanished. 0
// says that there was none, or that nobody knows.
func (p *processes) restOfPodOOM(u *unit) uint64 {
	proc := u.process()
	n, ok := p.podOOM(u, filepath.Dir(proc.Cgroup))
	if !ok || !proc.PodOOMKillsKnown {
		return 0
	}
	return n - min(n, proc.PodOOMKills)
}

// podOOM returns how often the OOM killer fired in a pod's group other than in containers of the
// pod besides u. It includes containers that were removed: if one of them had an OOM kill and was
// removed while u ran, that kill is taken for one of u's.
func (p *processes) podOOM(u *unit, group string) (n uint64, ok bool) {
	n, err := p.cgroups.OOMKillsBelow(group)
	if err != nil {
		return 0, false
	}
	for _, c := range u.pod.containers() {
		if c != u && filepath.Dir(c.process().Cgroup) == group {
			n -= min(n, p.oomKills(c))
		}
	}
	return n, true
}

// oomKills returns how often the OOM killer fired in the group of a container, as far as that is
// known.
func (p *processes) oomKills(u *unit) uint64 {
	u.oom.mu.Lock()
	n, known := u.oom.counter.kills, u.oom.known
	u.oom.mu.Unlock()
	if known {
		return n
	}
	if n, err := p.cgroups.OOMKills(u.process().Cgroup); err == nil {
		return n
	}
	return max(n, u.now().OOMKills)
}
