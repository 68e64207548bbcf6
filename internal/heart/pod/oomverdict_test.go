// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// reading is a reading of the counter of OOM kills, long after the container was started.
type reading struct {
	before time.Duration // the end of the container; negative: after it
	kills  uint64
	hits   []uint64 // of the container's own limit, its pod's, and one above
}

// PROPERTIES 36: OOMKilled is about this end.
func TestOOMKilledIsAboutThisEnd(t *testing.T) {
	const ms = time.Millisecond
	const week = 7 * 24 * time.Hour
	started, ended := clock.Stamped(time.Unix(1000, 0)), clock.Stamped(time.Unix(1000, 0).Add(week))
	type readings []reading
	none := []uint64{0, 0, 0}
	for _, tc := range []struct {
		name  string
		armed bool // the kernel notifies of kills; readings but the last are notified of then
		all   bool // also of those of the node
		read  readings
		code  uint32
		want  bool
		limit exit.Limit
		late  bool // the reading may be after the real end, of which the instant is not known
	}{
		{"there was none", true, true, readings{{0, 0, none}}, 1, false, "", false},
		{"a child long before", true, true, readings{{4 * 24 * time.Hour, 1, []uint64{1, 0, 0}}, {0, 1, nil}}, 1, false, "", false},
		{"a child long before, and SIGKILL by somebody", true, true, readings{{time.Hour, 1, []uint64{1, 0, 0}}, {0, 1, nil}}, 137, false, "", false},
		{"a child two seconds before", true, true, readings{{2 * time.Second, 1, []uint64{1, 0, 0}}, {0, 1, nil}}, 1, false, "", false},
		{"a child in the same second", true, true, readings{{900 * ms, 1, []uint64{1, 0, 0}}, {0, 1, nil}}, 1, true, exit.LimitContainer, false},
		{"a child just before, seen at the end", true, true, readings{{0, 1, []uint64{1, 0, 0}}}, 7, true, exit.LimitContainer, false},
		{"init", true, true, readings{{-5 * ms, 1, []uint64{1, 0, 0}}}, 137, true, exit.LimitContainer, false},
		{"init, and a child long before", true, true, readings{{time.Hour, 1, []uint64{1, 0, 0}}, {0, 2, []uint64{2, 0, 0}}}, 137, true, exit.LimitContainer, false},
		{"all of the group (memory.oom.group)", true, true, readings{{0, 5, []uint64{1, 0, 0}}}, 137, true, exit.LimitContainer, false},
		{"the pod's limit", true, true, readings{{0, 1, []uint64{0, 1, 0}}}, 137, true, exit.LimitPod, false},
		{"a limit above the pod's", true, true, readings{{0, 1, []uint64{0, 0, 3}}}, 137, true, exit.LimitAbove, false},
		{"the container's limit before, the pod's now", true, true, readings{{time.Hour, 1, []uint64{1, 0, 0}}, {0, 2, []uint64{1, 1, 0}}}, 137, true, exit.LimitPod, false},
		{"the node's memory", true, true, readings{{0, 1, none}}, 137, true, exit.LimitNode, false},
		{"the node's memory, a child", true, true, readings{{0, 1, none}}, 1, true, exit.LimitNode, false},
		{"the limits cannot be read any more", true, true, readings{{0, 1, nil}}, 137, true, exit.LimitUnknown, false},
		// Where the kernel does not notify, a kill may have been at any time since the last
		// reading.
		{"not notified: a child, or init", false, false, readings{{0, 1, []uint64{1, 0, 0}}}, 137, true, exit.LimitContainer, false},
		{"not notified: a child", false, false, readings{{0, 1, []uint64{1, 0, 0}}}, 1, false, "", false},
		{"not notified: read shortly before", false, false, readings{{500 * ms, 0, none}, {0, 1, []uint64{1, 0, 0}}}, 1, true, exit.LimitContainer, false},
		{"not notified: read between", false, false, readings{{time.Hour, 1, []uint64{1, 0, 0}}, {0, 1, nil}}, 137, false, "", false},
		{"berth was away when it ended", false, false, readings{{-time.Hour, 1, []uint64{1, 0, 0}}}, 137, true, exit.LimitContainer, false},
		{"berth was away when it ended, by itself", false, false, readings{{-time.Hour, 1, []uint64{1, 0, 0}}}, 1, false, "", false},
		{"berth found it ended, and nobody knows when that was", false, false, readings{{time.Hour, 1, []uint64{1, 0, 0}}}, 137, true, exit.LimitContainer, true},
		// Cgroup v1 does not notify of what the node's lack of memory causes.
		{"v1: the container's limit", true, false, readings{{0, 1, []uint64{9, 0, 0}}}, 1, true, exit.LimitContainer, false},
		{"v1: the node's memory, init", true, false, readings{{0, 1, none}}, 137, true, exit.LimitNode, false},
		{"v1: the node's memory, a child at any time", true, false, readings{{0, 1, none}}, 1, false, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var e oomEvidence
			e.counter = oomCounter{at: started, hits: none}
			for _, r := range tc.read {
				e.counter.read(r.kills, r.hits, ended.Add(-r.before), true, tc.armed, tc.all)
			}
			e.known = true
			e.counter.last.late = tc.late
			f := exit.Fact{ID: "c", Code: tc.code, Measured: true, At: ended, Origin: exit.Kernel}
			got, limit := e.verdict(f)
			if got != tc.want || got && limit != tc.limit {
				t.Errorf("%v because of %q, want %v because of %q", got, limit, tc.want, tc.limit)
			}
		})
	}
}

// With cgroup v1 the sum of the counters falls when a group below a container's is removed. What
// was counted there stays counted, and a kill in another one is seen.
func TestAGroupThatIsRemovedTakesNoOOMKillAlong(t *testing.T) {
	c := oomCounter{at: clock.Stamped(time.Unix(1, 0)), kills: 2, sum: 2}
	for i, tc := range []struct{ sum, grown, kills uint64 }{
		{2, 0, 2}, {5, 3, 5}, {3, 0, 5}, {3, 0, 5}, {4, 1, 6}, {0, 0, 6}, {1, 1, 7},
	} {
		if grown := c.read(tc.sum, nil, clock.Stamped(time.Unix(int64(i)+2, 0)), true, false, false); grown != tc.grown || c.kills != tc.kills {
			t.Errorf("reading %d: grown by %d to %d, want %d to %d", i, grown, c.kills, tc.grown, tc.kills)
		}
	}
}

// A group that the pod shares with others is not the pod's.
func TestASharedGroupIsNotThePods(t *testing.T) {
	if got := limitReached([]uint64{0, 0}, []uint64{0, 1}, false); got != exit.LimitAbove {
		t.Errorf("%q", got)
	}
}
