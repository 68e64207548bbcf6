// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"slices"

	"berth/internal/base/clock"
	"berth/internal/heart/state"
)

// inOrder puts the instants of records into the order in which they were made. They are in that
// order, except for those of a berth that knew no instants and stamped the wall time: if the clock
// was set back afterwards, the earlier stamps are too late. None is later than now, each
// object was created, started and ended in this order, and the creations of the sandboxes of a pod,
// and of the containers of one name in it, rise with the attempts.
func inOrder(all *state.Loaded, c *clock.Clock) {
	type made struct {
		attempt uint32
		at      *clock.Instant
	}
	attempts := map[string][]made{}
	uids := map[string]string{}
	for n := range all.Sandboxes {
		r := &all.Sandboxes[n]
		rising(c, &r.CreatedAt, &r.Status)
		m := r.Config.GetMetadata()
		uids[r.ID] = m.GetUid()
		attempts[m.GetUid()] = append(attempts[m.GetUid()], made{m.GetAttempt(), &r.CreatedAt})
	}
	for n := range all.Containers {
		r := &all.Containers[n]
		rising(c, &r.CreatedAt, &r.Status)
		m := r.Config.GetMetadata()
		of := uids[r.PodID] + "/" + m.GetName()
		attempts[of] = append(attempts[of], made{m.GetAttempt(), &r.CreatedAt})
	}
	for _, list := range attempts {
		slices.SortFunc(list, func(a, b made) int { return cmp.Compare(a.attempt, b.attempt) })
		for n := len(list) - 2; n >= 0; n-- {
			if next := list[n+1]; list[n].attempt < next.attempt {
				*list[n].at = clock.Earlier(*list[n].at, next.at.Add(-1))
			}
		}
	}
}

// rising puts the instants of one record into their order, none of them later than now.
func rising(c *clock.Clock, created *clock.Instant, st *state.Status) {
	next := c.Now()
	for _, at := range []*clock.Instant{&st.Exit.At, &st.StartedAt, created} {
		if !at.IsZero() {
			*at = clock.Earlier(*at, next)
			next = *at
		}
	}
	st.CreatedAt = clock.Earlier(st.CreatedAt, *created)
	st.OOMKilledAt = c.Past(st.OOMKilledAt)
}
