// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/event"
	"berth/internal/lane"
	"berth/internal/state"
)

// unit is one sandbox or container. Exactly one of sandbox and container is set; both are
// immutable.
//
//	          ┌────────── creation fails: undone ──────────┐
//	          │                                            ▼
//	CREATING ─┴─▶ CREATED ──▶ RUNNING ── exit settled ──▶ EXITED ──▶ released ──▶ removed
//	                 └─────── start fails ─────────────────▲          (sandboxes: READY, NOTREADY)
//
// change is the only way from one phase to the next. From CREATED to RUNNING a start has stages of
// its own, which are drawn at [attempt].
type unit struct {
	id        string
	sandbox   *state.Sandbox
	container *state.Container
	pod       *unit // of a container, its sandbox; of a sandbox, itself
	handler   Handler
	sandboxer Sandboxer // of a sandbox; nil of a container
	workload  workload
	store     Store
	createdAt int64 // in nanoseconds since the epoch

	// status is the last durable status, which readers see. It is never nil.
	status atomic.Pointer[state.Status]
	// item is what lists contain of u, for as long as it says what is true: package cri encodes an
	// item once that it has seen before.
	item atomic.Pointer[listItem]
	// changing serialises changes. It is held over the fsync and guards nothing else, so that only
	// writers of this one unit ever wait for it.
	changing gate
	erased   atomic.Bool // the record is deleted, or could not be made; written with changing held

	// task is held by whoever works on the unit's task: its making, its start, its deletion, or the
	// comparison of the record with containerd.
	task gate
	// listening says that the task witness waits for the task, so that each unit has one at most.
	listening atomic.Bool

	settled  lane.Event // the exit is durable and visible
	removed  lane.Event // the record is deleted and the name is free
	compared lane.Event // the record was compared with containerd, or is this berth's own
	// disconnected: a release of the sandbox has given its network back, if it had one.
	disconnected lane.Event
	// hurried: a stop or a removal was asked for. The release does not wait for its turn.
	hurried lane.Event

	evidence evidence
	oom      oomEvidence
	stops    stops
	queued   []queuedUpdate // in the order of their versions; guarded by the updater's lock

	mu struct {
		sync.Mutex
		attempt  attempt       // of a container, its start; the record says more of it
		process  state.Process // made, perhaps not recorded yet
		stdio    Stdio         // nil when there is none
		released error         // of the last attempt to release
		label    string        // the process's SELinux label; "" for none
		// interrupt ends the creation or the start in flight; nil when there is none.
		interrupt context.CancelCauseFunc
	}

	published published
	members   members // of a sandbox
}

// listItem is a unit as lists contain it. It is never changed.
type listItem struct {
	status    *state.Status // that it was made from
	image     *runtimeapi.ImageSpec
	sandbox   *runtimeapi.PodSandbox
	container *runtimeapi.Container
}

func (u *unit) init(st state.Status) {
	u.status.Store(&st)
	u.changing, u.task = make(gate, 1), make(gate, 1)
	u.evidence.init(st.Exit)
	u.mu.attempt.at = recorded(&st, false)
	u.mu.process, u.mu.label = st.Process, st.SELinuxLabel
	if st.Phase.Ended() {
		u.settled.Happen()
	}
	if st.Stopping || st.Removing {
		u.hurried.Happen()
	}
}

func (u *unit) isSandbox() bool { return u.sandbox != nil }

// isPinned reports whether u is a sandbox without a process.
func (u *unit) isPinned() bool { return u.isSandbox() && u.sandbox.Pinned }

// restored reports whether u is a container that is restored from a checkpoint.
func (u *unit) restored() bool { return !u.isSandbox() && u.container.Checkpoint != nil }

// adopted returns what the runtime before berth has made for u; nil: berth has made u.
func (u *unit) adopted() *state.Adopted {
	if u.isSandbox() {
		return u.sandbox.Adopted
	}
	return u.container.Adopted
}

// kind names the unit for messages.
func (u *unit) kind() string {
	if u.isSandbox() {
		return "sandbox"
	}
	return "container"
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

// now returns the last durable status. It must not be changed.
func (u *unit) now() *state.Status { return u.status.Load() }

// runs reports whether the last durable status says that the unit's process runs.
func (u *unit) runs() bool { return u.now().Phase == u.runningPhase() }

// visible reports whether clients see u: not while it is being made, and not a container whose making
// was given up. Nobody has its ID, and a kubelet that saw it would take it for a program that has
// ended. A sandbox without a container says nothing of the kind, and may be removed by hand.
func (u *unit) visible() bool {
	st := u.now()
	return st.Phase != state.Creating && (u.isSandbox() || st.Undone == "")
}

// change applies edit to a copy of the status, commits it and makes it visible, in this order. edit
// returns false to leave everything as it is. With an error, nothing changed: ErrNotFound says that
// the unit was removed.
func (u *unit) change(edit func(*state.Status) bool) error { return u.changeAfter(edit, nil) }

// changeAfter makes a change as change does, and calls wait after the commit, before the new status
// becomes visible. wait must be bounded.
func (u *unit) changeAfter(edit func(*state.Status) bool, wait func()) error {
	_ = u.changing.lock(context.Background()) // whoever holds it is bounded: a commit ends, if late
	defer u.changing.unlock()
	if u.erased.Load() {
		return fmt.Errorf("record %s %s: it is removed: %w", u.kind(), u.id, errdefs.ErrNotFound)
	}
	next := *u.now()
	if !edit(&next) {
		return nil
	}
	ch := state.ContainerStatus(u.id, next)
	if u.isSandbox() {
		ch = state.SandboxStatus(u.id, next)
	}
	if err := u.store.Commit(ch); err != nil {
		return fmt.Errorf("record %s %s: %w", u.kind(), u.id, err)
	}
	if wait != nil {
		wait()
	}
	u.status.Store(&next)
	if next.Phase.Ended() {
		u.settled.Happen()
	}
	return nil
}

// erase deletes the record. No change can follow it: a status that is written after the deletion
// would be found at the next boot without the record that it belongs to.
func (u *unit) erase() error {
	_ = u.changing.lock(context.Background()) // as in changeAfter
	defer u.changing.unlock()
	ch := state.DeleteContainer(u.id)
	if u.isSandbox() {
		ch = state.DeleteSandbox(u.id)
	}
	if err := u.store.Commit(ch); err != nil {
		return fmt.Errorf("delete record of %s %s: %w", u.kind(), u.id, err)
	}
	u.erased.Store(true)
	return nil
}

// attempt returns the start of the container u, as it is now.
func (u *unit) attempt() attempt {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.attempt
}

// move moves the start of u to another stage, if that follows the one it is at.
func (u *unit) move(to stage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.attempt = u.mu.attempt.move(to)
}

// moveAsRecorded moves the start of u to the stage that its record says.
func (u *unit) moveAsRecorded() { u.move(recorded(u.now(), u.stdio() != nil)) }

// giveUp gives up the start of u. The end of its process is what the settle waits for.
func (u *unit) giveUp(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.evidence.giveUp(why) // whoever sees the stage knows why
	u.mu.attempt = u.mu.attempt.move(stageGivenUp)
}

// markTakingBack records that the end of the process of u by SIGKILL is not an exit.
func (u *unit) markTakingBack() error {
	return u.change(func(st *state.Status) bool {
		was := st.TakingBack
		st.TakingBack = true
		return !was
	})
}

// keepStart records that the start of u is not taken back after all: what its process does counts.
// It changes nothing for a start that nobody takes back.
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

// setSpare says whether there may be a view that was made to renew the writable layer of u.
func (u *unit) setSpare(may bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.attempt.spare = may
}

func (u *unit) setProcess(p state.Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.process = p
}

// process returns the unit's process as known now, recorded or not.
func (u *unit) process() state.Process {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.process
}

func (u *unit) setStdio(s Stdio) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.stdio = s
}

func (u *unit) stdio() Stdio {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.stdio
}

func (u *unit) setLabel(label string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.label = label
}

// label returns the SELinux label of the unit's process, recorded or not; "" for none.
func (u *unit) label() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.label
}

func (u *unit) setReleaseError(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.released = err
}

// releaseError returns why the last attempt to release did not give back everything; nil if it did.
func (u *unit) releaseError() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.released
}

// interruptible returns a context that [unit.interrupt] ends. done must be called when the
// operation is over.
func (u *unit) interruptible(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.interrupt = cancel
	return ctx, func() {
		u.mu.Lock()
		u.mu.interrupt = nil
		u.mu.Unlock()
		cancel(nil)
	}
}

// interrupt ends the creation or the start that is in flight, if there is one.
func (u *unit) interrupt(why error) {
	u.mu.Lock()
	cancel := u.mu.interrupt
	u.mu.Unlock()
	if cancel != nil {
		cancel(why)
	}
}

// stopping returns a channel that is closed while a stop or the removal of u is in flight.
func (u *unit) stopping() <-chan struct{} {
	if u.now().Removing {
		return removing
	}
	return u.stops.channel()
}

// containers lists the containers of a sandbox.
func (u *unit) containers() []*unit { return u.members.list() }

// serves reports whether a container of the sandbox u, other than but, may have a task, which the shim
// of u serves. but may be nil.
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
	if d := cmp.Compare(a.createdAt, b.createdAt); d != 0 {
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

// sharesPIDs reports whether the processes of the unit are not in a PID namespace of their own, so
// that some may outlive its init.
func (u *unit) sharesPIDs() bool {
	if u.isSandbox() {
		return u.podNamespaces().GetPid() == runtimeapi.NamespaceMode_NODE
	}
	return u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER
}

// podNamespaces returns the namespaces that the pod of u asked for.
func (u *unit) podNamespaces() *runtimeapi.NamespaceOption {
	return u.pod.sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func hostIPC(u *unit) bool { return u.podNamespaces().GetIpc() == runtimeapi.NamespaceMode_NODE }

// names returns what clients call u.
func (u *unit) names() event.Names {
	pod := u.pod.sandbox.Config.GetMetadata()
	n := event.Names{
		Namespace: pod.GetNamespace(),
		Pod:       pod.GetName(),
		UID:       pod.GetUid(),
		Attempt:   pod.GetAttempt(),
	}
	if !u.isSandbox() {
		own := u.container.Config.GetMetadata()
		n.Sandbox, n.Container, n.Attempt = u.pod.id, own.GetName(), own.GetAttempt()
	}
	return n
}

func (u *unit) podUID() string { return u.pod.sandbox.Config.GetMetadata().GetUid() }

// hostname returns what the processes of the pod of u see as their host name.
func (u *unit) hostname() string {
	if h := u.pod.sandbox.Config.GetHostname(); h != "" {
		return h
	}
	h, _ := os.Hostname()
	return h
}

// imageName returns the name of the image of a container.
func (u *unit) imageName() string {
	if u.restored() {
		return u.container.Checkpoint.Image
	}
	return imageRef(u.container.Config)
}

// imageRef returns the image that a container asks for.
func imageRef(config *runtimeapi.ContainerConfig) string { return config.GetImage().GetImage() }
