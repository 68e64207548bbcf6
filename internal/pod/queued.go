// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/spec"
	"berth/internal/state"
)

// queuedUpdate is what one version changes. The record has what all versions make together, which
// the next berth carries out as one. This berth carries them out one after the other, so that one
// that is refused does not take those behind it along.
type queuedUpdate struct {
	version uint64
	change  *runtimeapi.LinuxContainerResources
}

// maxQueued is how many changes of one container are carried out one by one. If there are more, all
// of them are carried out as one.
const maxQueued = 16

// enqueue notes what a version that is being recorded changes.
func (x *updater) enqueue(u *unit, st *state.Status, version uint64, r *runtimeapi.LinuxContainerResources) {
	change := proto.CloneOf(r)
	if st.Phase == state.Running { // see plan
		change.OomScoreAdj, change.HugepageLimits = 0, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	list := upTo(u.queued, version-1) // a version that could not be recorded is given again
	if len(list) == 0 && st.Resources != nil && st.Resources.Wanted != nil {
		return // the changes of the versions before this one are not known apart
	}
	if len(list) == maxQueued {
		u.queued = nil
		return
	}
	list = append(list, queuedUpdate{version, change})
	u.queued = list
}

// upTo is a list without the versions after one.
func upTo(list []queuedUpdate, version uint64) []queuedUpdate {
	return slices.DeleteFunc(slices.Clone(list), func(q queuedUpdate) bool { return q.version > version })
}

// oldest returns the oldest version that is not concluded. It is the newest one, which contains all
// others, if their changes are not known apart.
func (x *updater) oldest(u *unit, newest *state.Resources) *state.Resources {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := upTo(u.queued, newest.Version)
	if len(list) == 0 {
		return newest
	}
	return &state.Resources{
		Version: list[0].version,
		Wanted:  &state.Limits{Linux: spec.MergeResources(limits(newest.Applied), list[0].change)},
		Applied: newest.Applied,
	}
}

// behind returns what the versions behind one make of the resources applied. It returns nil if
// their changes are not known apart.
func (x *updater) behind(u *unit, version, newest uint64, applied *state.Limits) *state.Limits {
	x.mu.Lock()
	defer x.mu.Unlock()
	known, wanted := false, limits(applied)
	for _, q := range upTo(u.queued, newest) {
		if q.version > version {
			known, wanted = true, spec.MergeResources(wanted, q.change)
		}
	}
	if !known {
		return nil
	}
	return &state.Limits{Linux: wanted}
}

// dequeue forgets the versions up to one, which is concluded.
func (x *updater) dequeue(u *unit, version uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	u.queued = slices.DeleteFunc(u.queued, func(q queuedUpdate) bool { return q.version <= version })
}
