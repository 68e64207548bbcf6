// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
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
// The only way from one phase to the next is change.
type unit struct {
	id        string
	sandbox   *state.Sandbox
	container *state.Container
	pod       *unit // of a container, its sandbox; of a sandbox, itself
	handler   Handler
	store     Store
	born      int64 // when it was created, in nanoseconds since the epoch

	// status is the last durable status: what readers see. Never nil.
	status atomic.Pointer[state.Status]
	// changing serialises changes. It is held over the fsync and guards nothing else, so
	// that only writers of this one unit ever wait for it.
	changing gate

	// starting is held while an operation that must not overlap with another of this unit
	// works on its task: the making, the start, the deletion.
	starting gate
	// launching says that what holds starting is a start that was asked for.
	launching atomic.Bool
	// waiting says that the task witness listens: one goroutine of this unit's, no more.
	waiting atomic.Bool

	settled chan struct{} // closed when the exit is durable
	removed chan struct{} // closed when the record is deleted

	mu struct {
		sync.Mutex
		since   time.Time     // of the first word that it ended
		heard   exit.Fact     // what witnesses said, merged, not yet settled
		hint    exit.Fact     // what containerd said while the kernel watches
		more    chan struct{} // closed, and replaced, when heard or hint learn something
		stdio   Stdio         // nil when there is none
		kills   int           // SIGKILLs of berth's that were delivered or are in flight
		stops   int           // stop signals of berth's, likewise
		oomTold bool          // containerd told of an OOM kill
		lastErr error         // of the last release attempt
		// unstarted is why the start was given up, and the process that was made for it killed.
		unstarted error
		process   state.Process // made, perhaps not recorded yet
	}

	// told is the last event type announced, +1; guarded by the pod's telling lock.
	told    int
	telling sync.Mutex // of a sandbox: serialises the events of its pod

	// members are the containers of a sandbox, by ID.
	members struct {
		sync.RWMutex
		byID   map[string]*unit
		sealed bool // its record is being deleted: no container can be made any more
	}
}

func newSandbox(s state.Sandbox, st state.Status, h Handler, store Store) *unit {
	u := &unit{id: s.ID, sandbox: &s, handler: h, store: store, born: s.CreatedAt.UnixNano()}
	u.pod = u
	u.members.byID = map[string]*unit{}
	u.init(st)
	return u
}

func newContainer(c state.Container, st state.Status, pod *unit, store Store) *unit {
	u := &unit{id: c.ID, container: &c, pod: pod, handler: pod.handler, store: store, born: c.CreatedAt.UnixNano()}
	u.init(st)
	return u
}

func (u *unit) init(st state.Status) {
	u.status.Store(&st)
	u.settled, u.removed = make(chan struct{}), make(chan struct{})
	u.changing, u.starting = make(gate, 1), make(gate, 1)
	u.mu.more = make(chan struct{})
	u.mu.process = st.Process
	if st.Phase.Ended() {
		close(u.settled)
	}
}

func (u *unit) isSandbox() bool { return u.sandbox != nil }

// kind names the unit for messages.
func (u *unit) kind() string {
	if u.isSandbox() {
		return "sandbox"
	}
	return "container"
}

// alive is the phase of a unit whose process runs.
func (u *unit) alive() state.Phase {
	if u.isSandbox() {
		return state.Ready
	}
	return state.Running
}

func (u *unit) ended() state.Phase {
	if u.isSandbox() {
		return state.NotReady
	}
	return state.Exited
}

// now is the last durable status. It must not be changed.
func (u *unit) now() *state.Status { return u.status.Load() }

// change applies edit to a copy of the status, commits it and makes it visible, in this order.
// edit may return false to leave everything as it is. With an error, nothing changed.
func (u *unit) change(edit func(*state.Status) bool) error {
	_ = u.changing.lock(context.Background()) // a commit ends: the disk may be slow, not silent
	defer u.changing.unlock()
	select {
	case <-u.removed:
		return fmt.Errorf("record %s %s: it is removed: %w", u.kind(), u.id, errdefs.ErrNotFound)
	default:
	}
	next := *u.now()
	if !edit(&next) {
		return nil
	}
	var ch state.Change
	if u.isSandbox() {
		ch = state.SandboxStatus(u.id, next)
	} else {
		ch = state.ContainerStatus(u.id, next)
	}
	if err := u.store.Commit(ch); err != nil {
		return fmt.Errorf("record %s %s: %w", u.kind(), u.id, err)
	}
	ended := next.Phase.Ended() && !u.now().Phase.Ended()
	u.status.Store(&next)
	if ended {
		close(u.settled)
	}
	return nil
}

// hear merges a fact and reports whether it said anything new. Facts of others than the
// kernel are only hints while the kernel watches.
func (u *unit) hear(f exit.Fact, hint bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	into := &u.mu.heard
	if hint {
		into = &u.mu.hint
	}
	merged, more := exit.Merge(*into, f)
	if more {
		if u.mu.since.IsZero() {
			u.mu.since = time.Now()
		}
		*into = merged
		close(u.mu.more)
		u.mu.more = make(chan struct{})
	}
	return more
}

// heard returns what is known, with the hint's code where the kernel could not give one,
// and a channel that is closed when there is more.
func (u *unit) heard() (exit.Fact, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f := u.mu.heard
	if !f.Zero() && u.mu.hint.Measured {
		f, _ = exit.Merge(f, u.mu.hint)
	}
	if u.mu.unstarted != nil && (!f.Measured || f.Origin == exit.Start || f.Signal() == int(unix.SIGKILL)) && !f.Zero() {
		f = exit.NotStarted(u.id, f.At, u.mu.unstarted.Error())
	}
	return f, u.mu.more
}

// noticed is when u's end was first heard of.
func (u *unit) noticed() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.since
}

func (u *unit) setProcess(p state.Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.process = p
}

// process is the unit's process as known now, recorded or not.
func (u *unit) process() state.Process {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.process
}

// counted sends a signal and counts it in n, which u.mu guards. It counts from before it is sent,
// because the exit that it causes may be settled before send returns. A signal that could not be
// delivered does not count: it does not explain an exit.
func (u *unit) counted(n *int, send func() error) error {
	add := func(d int) {
		u.mu.Lock()
		defer u.mu.Unlock()
		*n += d
	}
	add(1)
	err := send()
	if err != nil {
		add(-1)
	}
	return err
}

// giveUp notes that a start was given up.
func (u *unit) giveUp(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.unstarted = why
}

// givenUp reports whether a start was given up whose end is not settled yet.
func (u *unit) givenUp() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.unstarted != nil && !u.now().Phase.Ended()
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

// older compares units by the time when they were created, then by ID.
func (u *unit) older(other *unit) int {
	return cmp.Or(cmp.Compare(u.born, other.born), cmp.Compare(u.id, other.id))
}

// containers lists the containers of a sandbox, the oldest first.
func (u *unit) containers() []*unit {
	u.members.RLock()
	defer u.members.RUnlock()
	list := make([]*unit, 0, len(u.members.byID))
	for _, c := range u.members.byID {
		list = append(list, c)
	}
	slices.SortFunc(list, (*unit).older)
	return list
}

func (u *unit) join(c *unit) bool {
	u.members.Lock()
	defer u.members.Unlock()
	if !u.members.sealed {
		u.members.byID[c.id] = c
	}
	return !u.members.sealed
}

// seal keeps containers from joining from now on. It returns how many are there; none may be.
func (u *unit) seal() int {
	u.members.Lock()
	defer u.members.Unlock()
	u.members.sealed = len(u.members.byID) == 0
	return len(u.members.byID)
}

func (u *unit) leave(c *unit) {
	u.members.Lock()
	defer u.members.Unlock()
	delete(u.members.byID, c.id)
}

// sharedPID reports whether the processes of the unit are not in a PID namespace of their own,
// so that some may outlive its init.
func (u *unit) sharedPID() bool {
	if u.isSandbox() {
		return podPID(u.sandbox.Config) == runtimeapi.NamespaceMode_NODE
	}
	return u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER
}

func podPID(c *runtimeapi.PodSandboxConfig) runtimeapi.NamespaceMode {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()
}

// gate is a lock that can be waited for with a context.
type gate chan struct{}

func (g gate) lock(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	default:
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

func (g gate) tryLock() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) unlock() { <-g }
