// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/heart/state"
)

// unit is one sandbox or container. Exactly one of sandbox and container is set; both are
// immutable.
//
//	          ┌────────── creation fails: undone ──────────┐
//	          │                                            ▼
//	CREATING ─┴─▶ CREATED ──▶ RUNNING ── exit settled ──▶ EXITED ──▶ released ──▶ removed
//	                 └─────── start fails ─────────────────▲          (sandboxes: READY, NOTREADY)
//
// [record.change] is the only way from one phase to the next. From CREATED to RUNNING a start has
// stages of its own, which are drawn at [attempt].
type unit struct {
	record   // the durable part
	underway // the creation or the start in flight
	live     // the running part

	sandbox   *state.Sandbox
	container *state.Container
	pod       *unit // of a container, its sandbox; of a sandbox, itself
	handler   Handler
	sandboxer Sandboxer // of a sandbox; nil of a container
	workload  workload
	createdAt clock.Instant
	clock     *clock.Clock

	// item is the list item of u for as long as it is current: package cri encodes an item it has
	// seen before only once.
	item atomic.Pointer[listItem]
	// task is held during work on the unit's task: its creation, its start, its deletion, or the
	// comparison of the record with containerd.
	task gate
	// listening is set while the task witness waits for the task, so that each unit has one wait at
	// most.
	listening atomic.Bool
	// noted is the last comparison of the record with containerd; guarded by task.
	noted event.Compared
	// unopened is set if there may be stdio of an earlier berth that could not be opened yet.
	unopened atomic.Bool

	removed  lane.Event // the record is deleted and the name is free
	compared lane.Event // the record was compared with containerd, or is this berth's own
	// disconnected: a release of the sandbox has given its network back, if it had one.
	disconnected lane.Event
	// hurried: a stop or a removal was asked for. The release does not wait for its turn.
	hurried lane.Event
	// behind is set if the task of u was removed from the node while its shim hung: the shim and
	// containerd still have it.
	behind atomic.Bool
	// streamed: containerd's event stream has reported the end of a task of u.
	streamed lane.Event

	evidence evidence
	oom      oomEvidence
	stops    stops
	told     told
	queued   []queuedUpdate // in the order of their versions; guarded by the updater's lock

	released  atomic.Pointer[error] // of the last attempt to release
	unsettled atomic.Pointer[error] // of the last attempt to settle

	published published
	members   members // of a sandbox
}

// listItem is a unit as lists contain it. It is never changed.
type listItem struct {
	status    *state.Status // that it was made from
	clock     any           // the version of the clock then
	image     *runtimeapi.ImageSpec
	sandbox   *runtimeapi.PodSandbox
	container *runtimeapi.Container
}

func (u *unit) init(st state.Status) {
	u.record.init(st)
	u.task = make(gate, 1)
	u.evidence.init(st.Exit, u.clock)
	if st.Stop != nil && !st.Stop.Sent.IsZero() {
		u.evidence.of.Stops = 1
	}
	u.underway.start.at = recorded(&st, false)
	u.setProcess(st.Process)
	u.setLabel(st.SELinuxLabel)
	if st.Stopping || st.Removing {
		u.hurried.Happen()
	}
}

func (u *unit) isSandbox() bool { return u.sandbox != nil }

// isPinned reports whether u is a sandbox without a process.
func (u *unit) isPinned() bool { return u.isSandbox() && u.sandbox.Pinned }

// restored reports whether u is a container that is restored from a checkpoint.
func (u *unit) restored() bool { return !u.isSandbox() && u.container.Checkpoint != nil }

// adopted returns the objects that the previous runtime made for u; nil if berth made u.
func (u *unit) adopted() *state.Adopted {
	if u.isSandbox() {
		return u.sandbox.Adopted
	}
	return u.container.Adopted
}

// runningPhase returns the phase of a unit whose process runs.
func (u *unit) runningPhase() state.Phase {
	if u.isSandbox() {
		return state.Ready
	}
	return state.Running
}

// endedPhase returns the phase of a unit whose exit is settled.
func (u *unit) endedPhase() state.Phase {
	if u.isSandbox() {
		return state.NotReady
	}
	return state.Exited
}

// runs reports whether the unit's process runs, according to the last durable status.
func (u *unit) runs() bool { return u.now().Phase == u.runningPhase() }

// unrecorded returns the known end of u, if clients see u and the end is not on record yet.
func (u *unit) unrecorded() (known exit.Fact, ok bool) {
	known, _ = u.evidence.known()
	if known.Zero() || !u.visible() || u.now().Phase.Ended() {
		return exit.Fact{}, false
	}
	if known.At.IsZero() {
		known.At = u.evidence.noticedAt()
	}
	return known, true
}

// visible reports whether clients see u: not while it is being made, and not a container whose
// making was given up. The client does not have its ID, and a kubelet that saw it would take it for
// a program that has ended. A sandbox without a container causes no such confusion, and may be
// removed by hand.
func (u *unit) visible() bool {
	st := u.now()
	return st.Phase != state.Creating && (u.isSandbox() || st.Undone == "")
}

// moveAsRecorded moves the start of u to the stage in its record.
func (u *unit) moveAsRecorded() { u.move(recorded(u.now(), u.begun())) }

// begun reports whether a start has left stdio, or may have, because stdio that could not be opened
// may exist.
func (u *unit) begun() bool { return u.stdio() != nil || u.unopened.Load() }

// giveUp gives up the start of u. The settle then waits for the end of its process.
func (u *unit) giveUp(why error) {
	u.evidence.giveUp(why) // first: the reason is known where the stage is seen
	u.move(stageGivenUp)
}

// markTakingBack records that the end of the process of u by SIGKILL is not an exit.
func (u *unit) markTakingBack() error {
	return u.change(func(st *state.Status) bool {
		was := st.TakingBack
		st.TakingBack = true
		return !was
	})
}

// keepStart records that the start of u is not taken back after all, so that the end of its process
// is an exit. It changes nothing for a start that is not being taken back.
func (u *unit) keepStart() error {
	if err := u.change(func(st *state.Status) bool {
		was := st.TakingBack
		st.TakingBack = false
		return was
	}); err != nil {
		return err
	}
	if u.attempt().undone() {
		u.moveAsRecorded()
	}
	return nil
}

func (u *unit) setReleaseError(err error) { u.released.Store(&err) }

// releaseError returns why the last attempt to release did not give back everything; nil if it did.
func (u *unit) releaseError() error { return valueOf(&u.released) }

func (u *unit) setSettleError(err error) { u.unsettled.Store(&err) }

// settleError returns why the last attempt to settle failed; nil if it did not.
func (u *unit) settleError() error { return valueOf(&u.unsettled) }

// stopping returns a channel that is closed while a stop or the removal of u is in flight.
func (u *unit) stopping() <-chan struct{} {
	if u.now().Removing {
		return removing
	}
	return u.stops.channel()
}

// containers lists the containers of a sandbox.
func (u *unit) containers() []*unit { return u.members.list() }

// serves reports whether a container of the sandbox u, other than but, may have a task, which the
// shim of u serves. but may be nil.
func (u *unit) serves(but *unit) bool {
	for _, ct := range u.containers() {
		st := ct.now()
		switch {
		case ct == but:
		case !st.Holds.Has(state.HoldTask):
		case st.Phase.Ended(), st.Phase == state.Running:
			return true
		case st.Phase == state.Created && ct.attempt().at != stageNone:
			return true
		}
	}
	return false
}

func byAge(list []*unit) { slices.SortFunc(list, compareAge) }

func compareAge(a, b *unit) int {
	if d := a.createdAt.Compare(b.createdAt); d != 0 {
		return d
	}
	return cmp.Compare(a.id, b.id)
}

// mustBeReady returns ErrFailedPrecondition when the sandbox u takes no containers and starts none.
func (u *unit) mustBeReady() error {
	st := u.now()
	if st.Phase == state.Ready && !st.Stopping {
		return nil
	}
	phase := string(st.Phase)
	if st.Stopping {
		phase += ", stopping"
	}
	return fmt.Errorf("sandbox %s is not READY but %s; run a new one: %w", u.id, phase, errdefs.ErrFailedPrecondition)
}
