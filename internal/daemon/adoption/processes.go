// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/heart/state"
	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
)

// oomKills is what the counters of OOM kills have said while the containers ran, by container.
type oomKills map[string]oomCount

// oomCount is a reading of a counter of OOM kills.
type oomCount struct {
	count uint64
	at    clock.Instant
}

// count reads the counter of a container that runs: what it says now is not a reason of an end that
// comes later. now is when.
func (k oomKills) count(id string, st state.Status, now clock.Instant) {
	if st.Process.Pid == 0 {
		return
	}
	k.identify(id, &st, now)
	if st.OOMKills > 0 {
		k[id] = oomCount{st.OOMKills, st.OOMKilledAt}
	}
}

// identify completes what a record says of a process. Of one that has ended meanwhile only the
// cgroup is kept: its shim has its code, and the cgroup says whether it was the OOM killer. OOM
// kills that the process has survived are not a reason of its end.
func (k oomKills) identify(id string, st *state.Status, now clock.Instant) {
	if was, ok := k[id]; ok {
		st.OOMKills, st.OOMKilledAt = was.count, was.at
	}
	if st.Process.Pid == 0 {
		return
	}
	fd, p, err := pidfd.OpenProcess(st.Process.Process)
	if err != nil {
		st.Process = state.Process{Cgroup: st.Process.Cgroup} // the pid comes from the shim, which berth asks
		return
	}
	defer unix.Close(fd)
	group, err := cgroup.Of(p.Pid)
	kills, kerr := cgroup.OOMKills(group)
	if err != nil || pidfd.Ask(fd) != pidfd.Alive {
		st.Process.Process = p
		return // what was read may be about another process, or about the end of this one
	}
	st.Process = state.Process{Process: p, Cgroup: group}
	if kerr == nil && kills > st.OOMKills {
		st.OOMKills, st.OOMKilledAt = kills, now
	}
}
