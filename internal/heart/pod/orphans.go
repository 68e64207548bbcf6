// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/network"
)

// orphans removes objects that berth made outside and that have no record. The order in which berth
// records and makes things leaves no orphans. A restored backup does, and so does a call to
// containerd that berth had given up and that was carried out all the same.
type orphans struct {
	runtime Runtime
	network Network
	netns   NetNS
	files   Files
	pins    Pins
	stdios  Stdios
	store   Store
	units   *registry
	damaged *damaged // objects of these records are left alone
	lanes   *lanes
	obs     Observer

	mu   sync.Mutex
	byID map[string]orphan // being reaped
	seen map[string]bool   // tasks without a container, when last looked
}

// orphan lists the objects of one ID outside.
type orphan struct {
	snapshotter string            // of its writable layer; "" for none
	views       map[string]string // snapshotters of the images that it mounts, by key
	pinned      bool              // a network namespace
	shim        bool              // perhaps: it is a sandbox without a process, or the remains of any
	taskOnly    bool              // nothing but a task, whose origin is unknown
}

// find looks for orphans and has each reaped on a lane of its own. before holds the statuses of the
// units that existed before the inventory was taken: a listed ID without a unit, neither then nor
// now, is an orphan. A task alone does not show its origin, so it must be seen twice.
func (o *orphans) find(ctx context.Context, inv Inventory, before map[string]*state.Status) {
	found := o.collect(ctx, inv)
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.seen
	o.seen = map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		what := found[id]
		if _, ok := o.units.get(id); ok || before[id] != nil || o.damaged.has(id) {
			continue
		}
		if what.taskOnly {
			o.seen[id] = true
			if !last[id] {
				continue
			}
		}
		o.byID[id] = what
		o.lanes.reap(id)
	}
}

// reapSoon has the objects of an ID reaped whose record is deleted.
func (o *orphans) reapSoon(id string, what orphan) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID[id] = what
	o.lanes.reap(id)
}

// collect gathers everything outside that berth made, by ID.
func (o *orphans) collect(ctx context.Context, inv Inventory) map[string]orphan {
	found := map[string]orphan{}
	for id := range inv.Orphans {
		found[id] = orphan{taskOnly: true}
	}
	for id := range inv.Containers {
		found[id] = orphan{}
	}
	for id := range inv.Sandboxes {
		_, isTask := inv.Containers[id]
		found[id] = orphan{shim: !isTask}
	}
	for key, snapshotter := range inv.Snapshots {
		id, isView := viewedBy(key)
		what := found[id]
		what.taskOnly = false
		switch {
		case !isView:
			what.snapshotter = snapshotter
		case what.views == nil:
			what.views = map[string]string{key: snapshotter}
		default:
			what.views[key] = snapshotter
		}
		found[id] = what
	}
	pins, err := o.netns.Pinned(ctx)
	if err != nil {
		o.obs.Note("", event.OrphansUnlisted{What: "network namespaces", Err: err.Error()})
	}
	for _, id := range pins {
		what := found[id]
		what.pinned, what.taskOnly = true, false
		found[id] = what
	}
	ids, err := o.files.IDs()
	if err != nil {
		o.obs.Note("", event.OrphansUnlisted{What: "files of pods", Err: err.Error()})
	}
	spaces, err := o.pins.IDs()
	if err != nil {
		o.obs.Note("", event.OrphansUnlisted{What: "pinned namespaces", Err: err.Error()})
	}
	for _, id := range slices.Concat(ids, spaces) {
		what := found[id]
		what.taskOnly = false
		found[id] = what
	}
	return found
}

// reap removes the objects of one orphan. It is attempted by the lane of its ID.
func (o *orphans) reap(ctx context.Context, id string) error {
	o.mu.Lock()
	what, ok := o.byID[id]
	o.mu.Unlock()
	if _, known := o.units.get(id); known || !ok {
		return nil
	}
	o.obs.Note(id, event.OrphanFound{})
	if err := o.giveBack(ctx, id, what); err != nil {
		return fmt.Errorf("reap %s: %w", id, err)
	}
	o.mu.Lock()
	delete(o.byID, id)
	o.mu.Unlock()
	o.obs.Note(id, event.OrphanRemoved{})
	return nil
}

func (o *orphans) giveBack(ctx context.Context, id string, what orphan) error {
	var err error
	if what.shim { // before it is looked for as one that containerd does not know
		err = absent(o.runtime.EndShim(ctx, id))
	}
	if err == nil {
		err = absent(o.runtime.KillTask(ctx, id, unix.SIGKILL))
	}
	if err == nil {
		wait, cancel := context.WithTimeout(ctx, shimPatience)
		_, _ = o.runtime.WaitTask(wait, id) // if the shim does not answer, the deletion will show
		cancel()
		err = absent(o.runtime.DeleteTask(ctx, id))
	}
	if err != nil {
		return err
	}
	errs := []error{absent(o.runtime.DeleteContainer(ctx, id))}
	if what.snapshotter != "" {
		errs = append(errs, absent(o.runtime.DeleteSnapshot(ctx, what.snapshotter, id)))
	}
	errs = append(errs, absent(o.runtime.DeleteSandbox(ctx, id)))
	if what.pinned {
		path := o.netns.PathFor(id)
		if err := o.network.Teardown(ctx, network.Pod{ID: id, NetNS: path}, network.Result{}); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, o.netns.Remove(ctx, path))
		}
	}
	errs = append(errs, o.pins.Remove(id), o.stdios.RemoveAll(o.files.IO(id)))
	if err := o.files.Remove(id); err != nil {
		return errors.Join(append(errs, err)...) // a view stays while it may be mounted
	}
	for key, snapshotter := range what.views {
		errs = append(errs, absent(o.runtime.DeleteSnapshot(ctx, snapshotter, key)))
	}
	return errors.Join(errs...)
}

// stopDamaged kills the processes of a record that cannot be read, and, for a sandbox, those of its
// containers. Stopping an unknown ID succeeds.
func (o *orphans) stopDamaged(ctx context.Context, id string, kind state.Kind) error {
	rec, ok := o.damaged.find(id, kind)
	if !ok {
		return nil
	}
	if err := o.stopMembers(ctx, rec.ID); err != nil {
		return err
	}
	return o.kill(ctx, rec.ID)
}

// stopMembers kills the processes of a pod's containers whose records cannot be read.
func (o *orphans) stopMembers(ctx context.Context, pod string) error {
	for _, rec := range o.damaged.members(pod) {
		if err := o.kill(ctx, rec.ID); err != nil {
			return err
		}
	}
	return nil
}

// kill ends the process of a task and waits for its end, within a bound.
func (o *orphans) kill(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, heldPatience)
	defer cancel()
	err := o.runtime.KillTask(ctx, id, unix.SIGKILL)
	if err == nil {
		_, err = o.runtime.WaitTask(ctx, id)
	}
	if absent(err) != nil {
		return fmt.Errorf("stop %s, whose record is damaged: %w", id, err)
	}
	return nil
}

// removeMembers removes the objects of a pod's containers whose records cannot be read.
func (o *orphans) removeMembers(ctx context.Context, pod string) error {
	for _, rec := range o.damaged.members(pod) {
		if err := o.removeDamaged(ctx, rec.ID, state.KindContainer); err != nil {
			return err
		}
	}
	return nil
}

// removeDamaged removes the objects of a record that cannot be read, and the record. Removing an
// unknown ID succeeds.
func (o *orphans) removeDamaged(ctx context.Context, id string, kind state.Kind) error {
	rec, ok := o.damaged.find(id, kind)
	if !ok {
		return nil
	}
	err := o.removeMembers(ctx, rec.ID)
	var inv Inventory
	if err == nil {
		inv, err = o.runtime.Inventory(ctx)
	}
	if err == nil {
		err = o.giveBack(ctx, rec.ID, o.collect(ctx, inv)[rec.ID])
	}
	if err == nil {
		err = o.store.Commit(rec.Delete())
	}
	if err != nil {
		return fmt.Errorf("remove %s %s, whose record is damaged: %w", kind, rec.ID, err)
	}
	o.damaged.drop(rec.ID)
	o.obs.Note(rec.ID, event.Removed{})
	return nil
}
