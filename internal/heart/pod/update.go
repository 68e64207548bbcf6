// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// updater brings the resources of containers to the values that their records want.
//
//	                 ┌─────────── refused ───────────┐
//	                 ▼                               │
//	applied ── update committed ──▶ wanted, pending ─┴─ in effect, committed ──▶ applied
//
// The step of a lane of its own takes a container from pending to one of the other two. It is
// attempted again for as long as neither the shim nor the OCI runtime answers, and delays nothing.
// Changes that wait are carried out one after the other: see queuedUpdate.
type updater struct {
	host    spec.Host
	objects Objects
	tasks   Tasks
	lanes   *lanes
	ops     *operations
	obs     Observer

	mu      sync.Mutex
	waiting map[string][]*updateWaiter // by container
	last    map[string]error           // of the last attempt, by container with a waiter
}

// updateWaiter waits for the outcome of one version, or of a later one, which contains it.
type updateWaiter struct {
	version uint64
	done    lane.Event
	err     error // valid once done has happened
}

// update records the change, has it carried out, and waits for the outcome.
func (x *updater) update(ctx context.Context, u *unit, r *runtimeapi.LinuxContainerResources) error {
	if err := spec.CheckResources(r); err != nil {
		return err
	}
	w := &updateWaiter{}
	var degraded []spec.Degraded
	var refused error
	var kept bool // a running container keeps its oom_score_adj
	err := u.changeFor(ctx, func(st *state.Status) bool {
		var next *state.Resources
		// the running container keeps the limits that it has: see plan
		if st.Phase == state.Created {
			if r, degraded, refused = spec.KeptPages(x.host, r); refused != nil {
				return false
			}
		}
		if next, kept, refused = x.plan(u, st, r); next == nil {
			return false
		}
		x.enqueue(u, st, next.Version, r) // before an attempt can see this version
		x.wait(u.id, w, next.Version)
		st.Resources = next
		return true
	})
	defer x.unwait(u.id, w)
	if err != nil || refused != nil {
		return cmp.Or(refused, err)
	}
	noteDegraded(x.obs, u, degraded)
	if kept {
		x.obs.Note(u.id, event.OOMScoreKept{})
	}
	if w.version == 0 {
		return nil // everything is as the request wants it
	}
	x.obs.Note(u.id, event.ResourcesRecorded{Version: w.version})
	waiter, life := x.lanes.waitUpdate(u), x.lanes.wait(u)
	defer waiter.End()
	defer life.End()
	x.lanes.update(u)
	ended := fmt.Errorf("it ended before the change took effect: %w", errdefs.ErrFailedPrecondition)
	select {
	case <-w.done.Done(waiter):
		return w.err
	case <-u.settled.Done(life):
		return ended
	case <-u.removed.Done(life):
		return ended
	case <-x.ops.life.Done():
		return fmt.Errorf("the change is on record and goes on: %w", errStopping)
	case <-ctx.Done():
		err := fmt.Errorf("the change is on record and goes on; ask for the status: %w", ctxError(ctx))
		if last := x.lastError(u.id); last != nil {
			err = fmt.Errorf("%w (the last attempt: %s)", err, last.Error())
		}
		return err
	}
}

// plan returns the new record after the change r; nil if it does not change. It reports whether the
// request wants another oom_score_adj of a process that runs.
func (x *updater) plan(u *unit, st *state.Status, r *runtimeapi.LinuxContainerResources) (next *state.Resources, kept bool, err error) {
	switch {
	case st.Removing:
		return nil, false, fmt.Errorf("it is being removed: %w", errdefs.ErrFailedPrecondition)
	case st.Phase != state.Created && st.Phase != state.Running:
		return nil, false, fmt.Errorf("it is %s, neither CREATED nor RUNNING: %w", st.Phase, errdefs.ErrFailedPrecondition)
	}
	change := proto.CloneOf(r)
	before := state.Resources{}
	if st.Resources != nil {
		before = *st.Resources
	}
	newest := before.Wanted
	if newest == nil {
		newest = before.Applied
	}
	if st.Phase == state.Running {
		now := spec.MergeResources(u.container.Config.GetLinux().GetResources(), limits(newest))
		if err := samePages(now, change); err != nil {
			return nil, false, err
		}
		kept = change.GetOomScoreAdj() != 0 && change.GetOomScoreAdj() != now.GetOomScoreAdj()
		change.OomScoreAdj, change.HugepageLimits = 0, nil
	}
	updates := spec.MergeResources(limits(newest), change)
	if before.Wanted == nil && proto.Equal(updates, spec.MergeResources(limits(before.Applied), nil)) {
		return nil, kept, nil
	}
	if _, _, err := x.settings(u, updates); err != nil {
		return nil, false, err
	}
	return &state.Resources{
		Version: before.Version + 1,
		Wanted:  &state.Limits{Linux: updates},
		Applied: before.Applied,
	}, kept, nil
}

// samePages refuses a change of a running container's hugepage limits: OCI runtimes do not apply
// it, and a limit that is not in effect must not be reported.
func samePages(now, change *runtimeapi.LinuxContainerResources) error {
	have := map[string]uint64{}
	for _, l := range now.GetHugepageLimits() {
		have[l.GetPageSize()] = l.GetLimit()
	}
	for _, l := range change.GetHugepageLimits() {
		if v, ok := have[l.GetPageSize()]; ok && v != l.GetLimit() || !ok && l.GetLimit() != 0 {
			return fmt.Errorf("linux.hugepage_limits: the limit for pages of %s cannot change while the container runs: %w",
				l.GetPageSize(), errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// pending reports whether an update of u is on record that is not known to be in effect, and may
// still be.
func pending(st *state.Status) bool {
	return st.Resources != nil && st.Resources.Wanted != nil && !st.Phase.Ended()
}

// apply makes one attempt to bring u to the state that its record wants. It is idempotent: it
// repeats the steps of an earlier attempt.
func (x *updater) apply(ctx context.Context, u *unit) error {
	err := x.attempt(ctx, u)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.waiting[u.id]) > 0 {
		x.last[u.id] = err
	}
	return err
}

func (x *updater) attempt(ctx context.Context, u *unit) error {
	if err := x.lanes.waitCompared(ctx, u); err != nil {
		return fmt.Errorf("update container %s: %w", u.id, err)
	}
	if pending(u.now()) && u.now().Phase == state.Created {
		if err := lockSoon(ctx, u); err != nil { // a start reads the specification
			return fmt.Errorf("update container %s: another operation on it is in flight: %w", u.id, err)
		}
		err := x.beforeStart(ctx, u)
		u.task.unlock()
		if err != nil {
			return err
		}
	}
	for st := u.now(); pending(st); st = u.now() { // each turn concludes at least one version
		if err := x.carryOut(ctx, u, st, x.oldest(u, st.Resources)); err != nil {
			return err
		}
	}
	return nil
}

// carryOut brings the container to one version, or concludes that it is refused.
func (x *updater) carryOut(ctx context.Context, u *unit, st *state.Status, version *state.Resources) error {
	r, degraded, err := x.settings(u, limits(version.Wanted))
	if err != nil {
		return x.refuse(u, version, err)
	}
	if err := x.tasks.UpdateTask(ctx, u.id, x.careful(u, st, r)); err != nil {
		if !answered(err) {
			return err
		}
		if err := x.takeBack(ctx, u, version); err != nil {
			return err // the next attempt is refused again, and takes that back
		}
		return x.refuse(u, version, err)
	}
	if err := x.rewrite(ctx, u, r, 0); err != nil {
		return err
	}
	return x.confirm(u, version, degraded)
}

// takeBack restores the container's resources from before a version that the OCI runtime refused: a
// runtime may have set a part of it before the kernel refused the rest. The error is one after
// which the attempt is to be repeated.
func (x *updater) takeBack(ctx context.Context, u *unit, version *state.Resources) error {
	r, err := spec.RestoredResources(x.host, u.container.Config.GetLinux().GetResources(), limits(version.Applied), limits(version.Wanted))
	if err == nil {
		if err = x.tasks.UpdateTask(ctx, u.id, checked(r)); err != nil && !answered(err) {
			return fmt.Errorf("take back a refused change of the resources: %w", err)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		x.obs.Note(u.id, event.ResourcesNotTakenBack{Version: version.Version, Err: err.Error()})
	}
	return nil
}

// beforeStart puts the recorded resources into the specification that u will start with, while u is
// CREATED. u.task must be held.
func (x *updater) beforeStart(ctx context.Context, u *unit) error {
	st := u.now()
	if !pending(st) || st.Phase != state.Created {
		return nil
	}
	wanted := limits(st.Resources.Wanted)
	r, degraded, err := x.settings(u, wanted)
	if err != nil {
		return x.refuse(u, st.Resources, err)
	}
	if err := x.rewrite(ctx, u, r, wanted.GetOomScoreAdj()); err != nil {
		return err
	}
	return x.confirm(u, st.Resources, degraded)
}

func (x *updater) settings(u *unit, updates *runtimeapi.LinuxContainerResources) (*specs.LinuxResources, []spec.Degraded, error) {
	return spec.UpdatedResources(x.host, u.container.Config.GetLinux().GetResources(), updates)
}

// careful returns r with the demand that a memory limit which becomes lower is refused if more is
// in use already. Without it the OOM killer would make room, on cgroup v2.
func (x *updater) careful(u *unit, st *state.Status, r *specs.LinuxResources) *specs.LinuxResources {
	now := effective(u, st).GetMemoryLimitInBytes()
	if r.Memory.Limit == nil || now != 0 && *r.Memory.Limit >= now {
		return r
	}
	return checked(r)
}

// checked returns r with the demand that a memory limit is refused if more is in use.
func checked(r *specs.LinuxResources) *specs.LinuxResources {
	if r.Memory.Limit == nil || *r.Memory.Limit < 0 {
		return r
	}
	out, memory, check := *r, *r.Memory, true
	memory.CheckBeforeUpdate = &check
	out.Memory = &memory
	return &out
}

// rewrite changes the specification of the container's object, which a start uses and other
// programs read.
func (x *updater) rewrite(ctx context.Context, u *unit, r *specs.LinuxResources, oomScore int64) error {
	s, err := x.objects.Spec(ctx, u.id)
	if err != nil {
		return fmt.Errorf("read the spec of container %s: %w", u.id, err)
	}
	spec.ChangeResources(s, r)
	if oomScore != 0 {
		noteDegraded(x.obs, u, spec.ChangeOOMScore(x.host, s, oomScore))
	}
	return x.objects.UpdateSpec(ctx, u.id, s)
}

// confirm records that the values r wants are in effect.
func (x *updater) confirm(u *unit, r *state.Resources, degraded []spec.Degraded) error {
	if err := x.conclude(u, r, r.Wanted); err != nil {
		return err // the next attempt does it again
	}
	noteDegraded(x.obs, u, degraded)
	x.obs.Note(u.id, event.ResourcesApplied{Version: r.Version})
	x.finish(u.id, r.Version, nil)
	return nil
}

// refuse records that the values r wants are impossible: the container keeps its current ones.
func (x *updater) refuse(u *unit, r *state.Resources, why error) error {
	if errdefs.IsNotFound(why) {
		why = fmt.Errorf("containerd has no task of it: it is ending, or its shim has died: %w", errdefs.ErrFailedPrecondition)
	}
	if err := x.conclude(u, r, r.Applied); err != nil {
		return err
	}
	x.obs.Note(u.id, event.ResourcesRefused{Version: r.Version, Err: why.Error()})
	x.finish(u.id, r.Version, why)
	return nil
}

// conclude records the outcome of the version of r. A newer version stays pending, without the
// change of r if that was refused.
func (x *updater) conclude(u *unit, r *state.Resources, applied *state.Limits) error {
	err := u.change(func(st *state.Status) bool {
		next := *st.Resources
		next.Applied = applied
		if next.Version == r.Version {
			next.Wanted = nil
		} else if wanted := x.behind(u, r.Version, next.Version, applied); wanted != nil {
			next.Wanted = wanted
		}
		st.Resources = &next
		return true
	})
	if err != nil {
		return err
	}
	x.dequeue(u, r.Version)
	return nil
}

func (x *updater) wait(id string, w *updateWaiter, version uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.version = version
	x.waiting[id] = append(x.waiting[id], w)
}

func (x *updater) unwait(id string, w *updateWaiter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(id, func(other *updateWaiter) bool { return other == w })
}

// finish gives the outcome of a version to the calls that wait for it.
func (x *updater) finish(id string, version uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(id, func(w *updateWaiter) bool {
		if w.version > version {
			return false
		}
		w.err = err
		w.done.Happen()
		return true
	})
}

func (x *updater) dropLocked(id string, drop func(*updateWaiter) bool) {
	var left []*updateWaiter
	for _, w := range x.waiting[id] {
		if !drop(w) {
			left = append(left, w)
		}
	}
	if len(left) > 0 {
		x.waiting[id] = left
		return
	}
	delete(x.waiting, id)
	delete(x.last, id)
}

func (x *updater) lastError(id string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last[id]
}

// enqueue notes the change of a version that is being recorded.
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

// oldest returns the oldest version that is not concluded. If the changes are not known apart, it
// is the newest one, which contains all others.
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

// behind returns the applied resources plus the changes of the versions behind one. It returns nil
// if their changes are not known apart.
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

// dequeue forgets the versions up to one that is concluded.
func (x *updater) dequeue(u *unit, version uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	u.queued = slices.DeleteFunc(u.queued, func(q queuedUpdate) bool { return q.version <= version })
}
