// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/retry"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// oomReader reads the kernel's counters of OOM kills. It adds the readings to the evidence of each
// unit, which interprets them.
type oomReader struct {
	kernel  Kernel
	cgroups Cgroups
	obs     Observer
}

// arm asks the kernel to notify of OOM kills in the group of u from now on, and reads the counter
// for kills that happened while no berth was there. It is called before the program runs, by the
// next berth, and by the audit for as long as it was asked in vain. It reports whether there were
// kills that are not on record.
func (o *oomReader) arm(u *unit) (more bool) {
	dir := u.process().Cgroup
	if u.isSandbox() || dir == "" || u.now().Phase.Ended() {
		return false
	}
	all, err := o.cgroups.WatchOOM(u.id, dir)
	if absent(err) != nil && !u.oom.askedInVain() {
		o.obs.Note(u.id, event.OOMNotWatched{Err: err.Error()})
	}
	kills, kerr := o.cgroups.OOMKills(dir)
	hits, herr := o.cgroups.LimitHits(dir)
	if herr != nil {
		hits = nil
	}
	a, _ := o.kernel.Look(u.id)
	e := &u.oom
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed, e.all, e.vain = err == nil, all, absent(err) != nil || absent(kerr) != nil
	if kerr != nil {
		return false
	}
	st := u.now()
	if e.counter.at.IsZero() { // the recorded count was read then or later
		e.counter.kills, e.counter.survived, e.counter.at = st.OOMKills, st.OOMKills, st.StartedAt
		e.counter.sum = st.OOMKills
		if st.OOMKilledAt.After(st.StartedAt) {
			e.counter.at = st.OOMKilledAt
		}
	}
	grown := e.counter.read(kills, hits, u.clock.Now(), u.ownsGroup(), false, false)
	e.counter.last.late = grown > 0 && a != pidfd.Alive
	return grown > 0
}

// sample reads the counter of OOM kills of a container that has not ended, as far as is known.
func (o *oomReader) sample(u *unit) {
	dir := u.process().Cgroup
	n, err := o.cgroups.OOMKills(dir)
	if err == nil {
		o.count(u, dir, n, false)
	} else if absent(err) != nil {
		u.oom.miss()
	}
}

// count takes a reading of the counter in the group dir; the last one after the end.
func (o *oomReader) count(u *unit, dir string, kills uint64, last bool) {
	e := &u.oom
	var hits []uint64
	noticed := true
	if e.reading().sum < kills && dir != "" { // else the limits do not matter
		if now, err := o.cgroups.LimitHits(dir); err == nil {
			hits = now
		}
		noticed = !o.cgroups.Unnoticed(dir)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known {
		return
	}
	e.counter.read(kills, hits, u.clock.Now(), u.ownsGroup(), e.armed && noticed, e.all)
	e.known = last
}

// read reads the counter of OOM kills of a container that ended. It is called first of all, because
// the cgroup can vanish with the container: systemd removes a scope once it is empty, and on a busy
// host does so before the counter was read. The counter of the pod's group then stands in
// for the container's. If that one is not available either, containerd's report counts. It returns
// an error if the counter exists and could not be read.
func (o *oomReader) read(u *unit, f exit.Fact) error {
	err := o.readOwn(u, f)
	if absent(err) != nil || err == nil {
		return err
	}
	if n := o.restOfPod(u); n > 0 {
		o.obs.Note(u.id, event.OOMKillOfPod{})
		o.count(u, "", n, true)
		return nil
	}
	o.obs.Note(u.id, event.OOMCounterGone{Err: err.Error()})
	return nil
}

// readOwn reads the counter of the container's own group, unless it was read already. It waits
// for nothing, and may be called as soon as a witness reports the end.
func (o *oomReader) readOwn(u *unit, f exit.Fact) error {
	dir := cmp.Or(u.process().Cgroup, restoredGroup(o.cgroups, u))
	if u.isSandbox() || f.Origin == exit.Start || dir == "" || u.oom.isKnown() {
		return nil
	}
	n, err := o.cgroups.OOMKills(dir)
	if err == nil {
		o.count(u, dir, n, true)
	}
	return err
}

const (
	// oomPatience is how long an exit waits for a counter of OOM kills that cannot be read, and
	// oomPatienceAfter for how long after the exit its release does, before the group is removed.
	oomPatience      = 300 * time.Millisecond
	oomPatienceAfter = 10 * time.Second
)

// readAtEnd reads the counter of OOM kills of a container that has ended. One that cannot be read
// is tried again within a bound, and once more before the group is removed.
func (o *oomReader) readAtEnd(ctx context.Context, u *unit, known exit.Fact) {
	ctx, cancel := context.WithTimeout(ctx, oomPatience)
	defer cancel()
	for {
		err := o.read(u, known)
		u.oom.setUnread(err != nil)
		if err == nil {
			return
		}
		if !retry.Sleep(ctx.Done(), oomPatience/10) {
			o.obs.Note(u.id, event.OOMCounterUnread{Err: err.Error()})
			return
		}
	}
}

// judge returns a fact with the verdict on whether the OOM killer ended the container. While a
// signal of berth's own is on its way, which may or may not explain the end, it waits within a
// bound.
func (o *oomReader) judge(ctx context.Context, u *unit, known exit.Fact) exit.Fact {
	if u.isSandbox() || known.Origin == exit.Start || known.OOM {
		return known
	}
	if known.At.IsZero() {
		known.At = u.now().Exit.At // it is settled, and only its reason may be corrected
	}
	killed, limit := u.oom.verdict(known)
	if !killed {
		return known
	}
	if sent := u.evidence.contested(); sent != nil {
		ctx, cancel := context.WithTimeout(ctx, measureTimeout)
		select {
		case <-sent:
		case <-ctx.Done():
		}
		cancel()
	}
	if !u.evidence.explains(known) {
		known.OOM, known.Limit = true, limit
	}
	return known
}

// notePod notes the count of the pod's group before the process of u runs. That is needed only if
// systemd removes the process's own group, and is useful only if the pod has a group of its own,
// which the kubelet makes.
func (o *oomReader) notePod(u *unit, proc *state.Process) {
	if u.isSandbox() || !u.handler.SystemdCgroup || !u.ownsGroup() || proc.Cgroup == "" {
		return
	}
	proc.PodOOMKills, proc.PodOOMKillsKnown = o.ofPod(u, filepath.Dir(proc.Cgroup))
}

// restOfPod returns how many OOM kills the pod's group counted since the process of u ran, other
// than those in other containers of the pod: the kills in the group of u, which has vanished. 0
// means that there was none, or that it is unknown.
func (o *oomReader) restOfPod(u *unit) uint64 {
	proc := u.process()
	n, ok := o.ofPod(u, filepath.Dir(proc.Cgroup))
	if !ok || !proc.PodOOMKillsKnown {
		return 0
	}
	return n - min(n, proc.PodOOMKills)
}

// ofPod returns how often the OOM killer fired in a pod's group other than in containers of the
// pod besides u. It includes containers that were removed: if one of them had an OOM kill and was
// removed while u ran, that kill is taken for one of u's.
func (o *oomReader) ofPod(u *unit, group string) (n uint64, ok bool) {
	n, err := o.cgroups.OOMKillsBelow(group)
	if err != nil {
		return 0, false
	}
	for _, c := range u.pod.containers() {
		if c != u && filepath.Dir(c.process().Cgroup) == group {
			n -= min(n, o.of(c))
		}
	}
	return n, true
}

// of returns how often the OOM killer fired in the group of a container, as far as that is known.
func (o *oomReader) of(u *unit) uint64 {
	u.oom.mu.Lock()
	n, known := u.oom.counter.kills, u.oom.known
	u.oom.mu.Unlock()
	if known {
		return n
	}
	if n, err := o.cgroups.OOMKills(u.process().Cgroup); err == nil {
		return n
	}
	return max(n, u.now().OOMKills)
}
