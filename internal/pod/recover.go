// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/state"
)

// sight is what is seen of one unit when records and the outside are compared.
type sight struct {
	Phase    state.Phase
	Removing bool
	Task     taskSight
	Process  processSight
}

type taskSight string

const (
	taskNone    taskSight = "none"    // containerd knows no task
	taskMade    taskSight = "made"    // its process was made and not started
	taskAlive   taskSight = "alive"   // containerd says that it runs
	taskStopped taskSight = "stopped" // containerd has its exit code
	taskMute    taskSight = "mute"    // there may be one, its shim does not answer
)

type processSight string

const (
	processAlive   processSight = "alive"   // the recorded process lives
	processGone    processSight = "gone"    // it does not
	processUnknown processSight = "unknown" // none is recorded, or the kernel cannot see it
)

// course is what follows.
type course string

const (
	courseNone    course = "none"    // all is well, nothing runs
	courseWatch   course = "watch"   // it runs: watch on
	courseAdopt   course = "adopt"   // it was started, only the record does not say so yet
	courseTask    course = "task"    // it ended: containerd has the code
	courseAsk     course = "ask"     // it ended: the code has to be asked for
	courseLost    course = "lost"    // it ended, and nobody can know how
	courseNoStart course = "nostart" // it was made and never started: the start was cut off
	courseUndo    course = "undo"    // its creation was cut off
	courseRelease course = "release" // it ended, and its release goes on
)

// decide is the whole of recovery: one row per case, the same after a crash, a clean stop, or a
// lost connection to containerd.
//
// The kernel's word on a recorded process goes before containerd's: a task whose shim died is
// unknown to containerd while its process may well live.
func decide(s sight) course {
	switch s.Phase {
	case state.Creating:
		return courseUndo
	case state.Exited, state.NotReady:
		return courseRelease
	case state.Created:
		if s.Removing {
			return courseRelease
		}
		switch s.Task {
		case taskMade:
			return courseNoStart
		case taskAlive:
			return courseAdopt
		case taskStopped:
			return courseTask
		default: // a mute one is asked again by the audit, and deleted with the container
			return courseNone
		}
	}
	// RUNNING, READY
	switch s.Process {
	case processAlive:
		return courseWatch
	case processGone:
		switch s.Task {
		case taskStopped:
			return courseTask
		case taskAlive, taskMade, taskMute:
			return courseAsk // the shim is about to learn it
		default:
			return courseLost
		}
	}
	switch s.Task {
	case taskAlive, taskMade, taskMute:
		return courseWatch
	case taskStopped:
		return courseTask
	default:
		return courseLost
	}
}

// Recover takes the records that were loaded, compares them with the outside and sets
// everything going. Call it once, before Run. Damaged records are left alone, and what belongs to them
// too. The error is that of reaching containerd: nothing was decided then.
func (c *Controller) Recover(ctx context.Context, loaded state.Loaded) error {
	inv, err := c.runtime.Inventory(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	known := map[string]bool{}
	for _, d := range loaded.Damaged {
		known[d.ID] = true
		c.obs.Event(d.ID, "record cannot be read and is left alone", d.Err)
	}
	for _, r := range loaded.Sandboxes {
		known[r.ID] = true
		c.restore(newSandbox(r.Sandbox, r.Status, c.handlerOf(r.Handler), c.store))
	}
	for _, r := range loaded.Containers {
		known[r.ID] = true
		p, ok := c.unit(r.PodID)
		if !ok {
			c.obs.Event(r.ID, "record names a sandbox that has none: left alone", nil, "sandbox", r.PodID)
			continue
		}
		c.restore(newContainer(r.Container, r.Status, p, c.store))
	}
	c.compare(ctx, inv)
	c.reap(ctx, inv, known)
	for _, u := range append(c.all(true), c.all(false)...) {
		if u.now().Phase.Ended() && !u.now().Removing {
			// Whether anyone heard of it before the restart is not known: tell it again.
			c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	}
	return nil
}

// handlerOf is the handler of a record. One that is not configured any more still has to be
// watched and released: the record's name with the common traits will do.
func (c *Controller) handlerOf(name string) Handler {
	if h, err := c.handler(name); err == nil {
		return h
	}
	return Handler{Name: name, HostProcess: true}
}

func (c *Controller) restore(u *unit) {
	st := u.now()
	c.add(u)
	if !c.flights.take(nameOf(u), u.id) && !st.Removing {
		c.obs.Event(u.id, "another unit has the same name", nil, "name", nameOf(u))
	}
	switch {
	case st.Phase == state.Creating:
	case st.StartedAt.IsZero():
		u.told = int(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT) + 1
	default:
		u.told = int(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT) + 1
	}
	if !st.Exit.Zero() {
		u.mu.heard = st.Exit
	}
}

// Relist compares every unit with containerd's lists: after each new connection, events may
// have been lost.
func (c *Controller) Relist(ctx context.Context) error {
	inv, err := c.runtime.Inventory(ctx)
	if err != nil {
		return fmt.Errorf("relist: %w", err)
	}
	c.compare(ctx, inv)
	return nil
}

// compare decides for each unit and follows. One unit's trouble is its own.
func (c *Controller) compare(ctx context.Context, inv Inventory) {
	var g errgroup.Group
	g.SetLimit(16)
	for _, u := range append(c.all(true), c.all(false)...) {
		g.Go(func() error {
			if !u.starting.tryLock() {
				return nil // an operation of ours is at work on it and will see for itself
			}
			defer u.starting.unlock()
			c.follow(ctx, u, inv)
			return nil
		})
	}
	_ = g.Wait()
}

func (c *Controller) follow(ctx context.Context, u *unit, inv Inventory) {
	st := u.now()
	task, has := inv.Tasks[u.id]
	s := sight{Phase: st.Phase, Removing: st.Removing, Task: seenTask(task, has, inv.Unknown[u.id]), Process: c.seeProcess(u)}
	do := decide(s)
	if do != courseNone {
		c.obs.Event(u.id, "compared with containerd", nil, "phase", string(s.Phase), "task", string(s.Task), "process", string(s.Process), "course", string(do))
	}
	switch do {
	case courseWatch:
		c.resume(u, task)
	case courseAdopt:
		c.adopt(u, task)
	case courseTask:
		c.Exited(exit.Fact{ID: u.id, Code: task.Code, Measured: true, At: task.ExitedAt, Origin: exit.Task})
	case courseAsk:
		c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit})
	case courseLost:
		c.Exited(exit.Fact{ID: u.id, At: time.Now(), Origin: exit.Audit, Message: "its process was gone and containerd knew nothing of it any more"})
	case courseNoStart:
		u.hear(exit.Fact{ID: u.id, Code: exit.CodeStartError, At: time.Now(), Origin: exit.Start, Message: "berth stopped while it was being started"}, false)
		c.lanes.Offer(u.id, StepSettle)
	case courseUndo:
		c.undoCutOff(u)
	case courseRelease:
		c.reopenStdio(u)
		c.lanes.Offer(u.id, StepRelease)
	}
}

func seenTask(t TaskState, has, mute bool) taskSight {
	switch {
	case mute:
		return taskMute
	case !has:
		return taskNone
	case t.Stopped:
		return taskStopped
	case t.Running:
		return taskAlive
	default:
		return taskMade
	}
}

// seeProcess watches the recorded process again, and says what became of it.
func (c *Controller) seeProcess(u *unit) processSight {
	st := u.now()
	if !u.handler.HostProcess || st.Process.Pid == 0 || st.Phase != u.alive() {
		return processUnknown
	}
	if alive, watched := c.kernel.Look(u.id); watched {
		if alive {
			return processAlive
		}
		return processGone
	}
	_, err := c.kernel.Watch(u.id, st.Process)
	switch {
	case errdefs.IsNotFound(err):
		return processGone
	case err != nil:
		c.obs.Event(u.id, "the kernel cannot watch it", err)
		return processUnknown
	}
	if alive, _ := c.kernel.Look(u.id); !alive {
		return processGone // it ended; a pidfd that was kept may yet tell the code
	}
	return processAlive
}

// resume goes on with a unit that runs: stdio and the task witness.
func (c *Controller) resume(u *unit, task TaskState) {
	c.reopenStdio(u)
	if u.now().Process.Pid == 0 && task.Pid != 0 {
		if p, err := c.watch(u, state.Process{Pid: task.Pid}); err == nil {
			u.setProcess(p)
		}
	}
	c.waitTask(u)
}

// reopenStdio goes on pumping what the container wrote while berth was away.
func (c *Controller) reopenStdio(u *unit) {
	if u.isSandbox() || u.stdio() != nil || !u.now().Holds.Has(state.HoldIO) {
		return
	}
	s, err := c.stdios.Open(c.logOptions(u))
	if err != nil {
		if !errdefs.IsNotFound(err) {
			c.obs.Event(u.id, "its output cannot be read any more", err)
		}
		return
	}
	u.setStdio(s)
	c.pump(u, s)
}

// adopt records a start whose success was not recorded when berth was cut off.
func (c *Controller) adopt(u *unit, task TaskState) {
	p, err := c.watch(u, state.Process{Pid: task.Pid})
	if errdefs.IsNotFound(err) {
		c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit})
		return
	}
	u.setProcess(p)
	c.reopenStdio(u)
	if err := u.change(func(st *state.Status) bool {
		st.Phase, st.Process, st.StartedAt = u.alive(), p, time.Now()
		return true
	}); err != nil {
		c.obs.Event(u.id, "its start cannot be recorded", err)
		return
	}
	c.waitTask(u)
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
}

// undoCutOff marks a creation that was cut off as failed; its lane gives everything back.
func (c *Controller) undoCutOff(u *unit) {
	const why = "berth stopped while it was being made"
	if err := u.change(func(st *state.Status) bool {
		st.Phase, st.Removing, st.Stopping, st.Undone = u.ended(), true, true, why
		st.Exit = exit.Fact{ID: u.id, Code: exit.CodeStartError, At: time.Now(), Origin: exit.Start, Message: why}
		return true
	}); err != nil {
		c.obs.Event(u.id, "its undoing cannot be recorded", err)
		return
	}
	c.lanes.Offer(u.id, StepRelease)
}

// reap removes what is ours outside and has no record: it cannot be there by berth's own order
// of doing things, but a restored backup or a deleted database can leave it.
func (c *Controller) reap(ctx context.Context, inv Inventory, known map[string]bool) {
	for id := range inv.Containers {
		if !known[id] {
			c.obs.Event(id, "ours without a record: reaped", c.reapContainer(ctx, id))
		}
	}
	for key, snapshotter := range inv.Snapshots {
		if !known[key] {
			c.obs.Event(key, "snapshot without a record: reaped", c.runtime.DeleteSnapshot(ctx, snapshotter, key))
		}
	}
	for id := range inv.Sandboxes {
		if !known[id] {
			c.obs.Event(id, "sandbox object without a record: reaped", c.runtime.DeleteSandbox(ctx, id))
		}
	}
	inUse := map[string]bool{}
	for _, u := range c.all(true) {
		inUse[u.sandbox.NetNS] = true
	}
	if len(known) == len(c.all(true))+len(c.all(false)) { // a damaged record may own one of them
		pins, err := c.network.List(ctx)
		if err != nil {
			c.obs.Event("", "network namespaces cannot be listed", err)
		}
		for _, p := range pins {
			if !inUse[p] {
				c.obs.Event("", "network namespace without a record: reaped", c.network.RemoveNS(ctx, p), "path", p)
			}
		}
	}
	for _, base := range []string{"sandboxes", "io"} {
		c.reapDirs(filepath.Join(c.cfg.State, base), known)
	}
	c.reapDirs(filepath.Join(c.cfg.Root, "volumes"), known)
}

func (c *Controller) reapContainer(ctx context.Context, id string) error {
	if err := c.runtime.KillTask(ctx, id, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := c.runtime.DeleteTask(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return c.runtime.DeleteContainer(ctx, id)
}

func (c *Controller) reapDirs(base string, known map[string]bool) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		dir := filepath.Join(base, e.Name())
		if err := unix.Unmount(filepath.Join(dir, "shm"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
			!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			c.obs.Event(e.Name(), "left-over directory cannot be unmounted", err)
			continue
		}
		c.obs.Event(e.Name(), "left-over directory: reaped", os.RemoveAll(dir), "path", dir)
	}
}
