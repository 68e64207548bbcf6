// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"path/filepath"

	"berth/internal/exit"
	"berth/internal/state"
)

// readOOM reads the counter of OOM kills of a container that ended. It is called first of all,
// since the cgroup can vanish with the container: systemd removes a scope once it is empty, and on
// a busy host does so before anybody has read the counter. The counter of the pod's group says then
// what the container's would have said. Where that one does not say it either, containerd's report
// counts.
func (p *processes) readOOM(u *unit, f exit.Fact) {
	err := p.readOwnOOM(u, f)
	if err == nil {
		return
	}
	if n := p.restOfPodOOM(u); n > 0 {
		p.obs.Event(u.id, "the cgroup vanished, and the pod's counts an OOM kill", nil)
		u.evidence.setOOM(oomReading{known: true, kills: n})
		return
	}
	p.obs.Event(u.id, "the cgroup's counter of OOM kills cannot be read: what containerd reported counts", err)
}

// readOwnOOM reads the counter of the container's own group, unless it was read already. It waits
// for nothing, and may be called as soon as a witness reports the end.
func (p *processes) readOwnOOM(u *unit, f exit.Fact) error {
	dir := cmp.Or(u.process().Cgroup, p.restoredGroup(u))
	if _, read := u.evidence.oomKills(); read || u.isSandbox() || f.Origin == exit.Start || dir == "" {
		return nil
	}
	n, err := p.cgroups.OOMKills(dir)
	if err == nil {
		u.evidence.setOOM(oomReading{known: true, kills: n})
	}
	return err
}

// countPodOOM notes what the pod's group had counted before the process of u runs. That is needed
// only where systemd removes the process's own group, and says something only where the pod has a
// group of its own, which the kubelet makes.
func (p *processes) countPodOOM(u *unit, proc *state.Process) {
	own := u.pod.sandbox.Config.GetLinux().GetCgroupParent() != ""
	if u.isSandbox() || !u.handler.SystemdCgroup || !own || proc.Cgroup == "" {
		return
	}
	proc.PodOOMKills, proc.PodOOMKillsKnown = p.podOOM(u, filepath.Dir(proc.Cgroup))
}

// restOfPodOOM is how many OOM kills the pod's group counted since the process of u ran, other than
// those in other containers of the pod: the kills in the group of u, which has vanished. 0 says
// that there was none, or that nobody knows.
func (p *processes) restOfPodOOM(u *unit) uint64 {
	proc := u.process()
	n, ok := p.podOOM(u, filepath.Dir(proc.Cgroup))
	if !ok || !proc.PodOOMKillsKnown {
		return 0
	}
	return n - min(n, proc.PodOOMKills)
}

// podOOM is how often the OOM killer fired in a pod's group other than in containers of the pod
// besides u. It includes containers that were removed: if one of them had an OOM kill and was
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

// oomKills is how often the OOM killer fired in the group of a container, as far as that is known.
func (p *processes) oomKills(u *unit) uint64 {
	if n, ok := u.evidence.oomKills(); ok {
		return n
	}
	if n, err := p.cgroups.OOMKills(u.process().Cgroup); err == nil {
		return n
	}
	if u.now().Exit.OOM {
		return 1 // settled by an earlier berth
	}
	return 0
}
