// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"berth/internal/base/lane"
	"berth/internal/heart/state"
)

// record is the record of one unit: its last durable status, the one that readers see.
type record struct {
	id    string
	of    state.Kind
	store Store

	status atomic.Pointer[state.Status] // never nil
	// changing serialises changes. It is held over the fsync and guards nothing else, so that only
	// writers of this one unit ever wait for it.
	changing gate
	calls    atomic.Int32 // that wait for changing
	erased   atomic.Bool  // the record is deleted, or could not be made; written with changing held
	settled  lane.Event   // the exit is durable and visible
}

func (r *record) init(st state.Status) {
	r.changing = make(gate, 1)
	r.status.Store(&st)
	if st.Phase.Ended() {
		r.settled.Happen()
	}
}

// kind names the unit for messages: a sandbox or a container.
func (r *record) kind() string { return string(r.of) }

// now returns the last durable status. It must not be changed.
func (r *record) now() *state.Status { return r.status.Load() }

// change applies edit to a copy of the status, commits it and makes it visible, in this order. edit
// returns false to leave everything as it is. With an error, nothing changed: ErrNotFound means
// that the unit was removed.
func (r *record) change(edit func(*state.Status) bool) error { return r.changeAfter(edit, nil) }

// changeAfter makes a change as change does, and calls wait after the commit, before the new status
// becomes visible. wait must be bounded.
func (r *record) changeAfter(edit func(*state.Status) bool, wait func()) error {
	_ = r.changing.lock(context.Background()) // lanes and operations of a unit are few
	return r.changeLocked(edit, wait)
}

// mostCalls is how many calls may wait for the change of one record that is being written.
const mostCalls = 64

// changeFor makes a change as change does, for a call, which waits no longer than ctx for the
// changes before it. With an error of ctx's nothing changed. If the disk does not answer, one call
// of each unit waits for it, because a commit cannot be cut off and its result is unknown before it
// returns. So the number of waiting calls is bounded by the units on record, plus mostCreations.
// More than mostCalls do not wait for their turn: they get ErrResourceExhausted at once.
func (r *record) changeFor(ctx context.Context, edit func(*state.Status) bool) error {
	if !r.changing.tryLock() {
		n := r.calls.Add(1)
		defer r.calls.Add(-1)
		if n > mostCalls {
			return fmt.Errorf("record %s %s: %d calls wait already until a change of it is on the disk: %w", r.kind(), r.id, mostCalls, errdefs.ErrResourceExhausted)
		}
		if err := r.changing.lock(ctx); err != nil {
			return fmt.Errorf("record %s %s: wait until the change before this one is on the disk: %w", r.kind(), r.id, err)
		}
	}
	return r.changeLocked(edit, nil)
}

// changeLocked makes a change, and unlocks changing, which the caller has locked.
func (r *record) changeLocked(edit func(*state.Status) bool, wait func()) error {
	defer r.changing.unlock()
	if r.erased.Load() {
		return fmt.Errorf("record %s %s: it is removed: %w", r.kind(), r.id, errdefs.ErrNotFound)
	}
	next := *r.now()
	if !edit(&next) {
		return nil
	}
	ch := state.ContainerStatus(r.id, next)
	if r.of == state.KindSandbox {
		ch = state.SandboxStatus(r.id, next)
	}
	if err := r.store.Commit(ch); err != nil {
		return fmt.Errorf("record %s %s: %w", r.kind(), r.id, err)
	}
	if wait != nil {
		wait()
	}
	r.status.Store(&next)
	if next.Phase.Ended() {
		r.settled.Happen()
	}
	return nil
}

// erase deletes the record. No change can follow it: a status that is written after the deletion
// would be found at the next boot without the record that it belongs to.
func (r *record) erase() error {
	_ = r.changing.lock(context.Background()) // as in changeAfter
	defer r.changing.unlock()
	ch := state.DeleteContainer(r.id)
	if r.of == state.KindSandbox {
		ch = state.DeleteSandbox(r.id)
	}
	if err := r.store.Commit(ch); err != nil {
		return fmt.Errorf("delete record of %s %s: %w", r.kind(), r.id, err)
	}
	r.erased.Store(true)
	return nil
}
