// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/state"
)

// sight is what is seen of one unit when records and the outside are compared.
type sight struct {
	Phase    state.Phase
	Removing bool
	Made     bool // a process is in the record
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
	processUnseen  processSight = "unseen"  // it is of this host, and the kernel could not be asked
	processUnknown processSight = "unknown" // none is recorded, or it is not of this host
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
	courseNoStart course = "nostart" // its start was cut off, and is given up
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
		}
		switch s.Process { // its shim does not say, or is dead
		case processAlive, processUnseen:
			return courseNoStart
		case processGone:
			return courseLost
		case processUnknown:
			if s.Made && s.Task == taskNone {
				return courseLost
			}
		}
		return courseNone
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
		if s.Process == processUnseen {
			return courseNone // it may live without its shim: the audit looks again
		}
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
	for _, d := range loaded.Damaged {
		c.strays.damaged[d.ID] = true
		c.obs.Event(d.ID, "record cannot be read and is left alone", d.Err)
	}
	for _, r := range loaded.Sandboxes {
		c.restore(newSandbox(r.Sandbox, r.Status, c.handlerOf(r.Handler), c.store))
	}
	for _, r := range loaded.Containers {
		p, ok := c.unit(r.PodID)
		if !ok {
			c.strays.damaged[r.ID] = true
			c.obs.Event(r.ID, "record names a sandbox that has none: left alone", nil, "sandbox", r.PodID)
			continue
		}
		c.restore(newContainer(r.Container, r.Status, p, c.store))
	}
	c.compare(ctx, inv)
	c.findStrays(ctx, inv, true)
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
	c.findStrays(ctx, inv, false)
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
	if u.isSandbox() && u.sandbox.Sandboxer != "" { // it is no task
		var err error
		if task, err = c.bodyState(ctx, u); err == nil {
			has = true
		} else if !errdefs.IsNotFound(err) {
			inv.Unknown = map[string]bool{u.id: true}
		}
	}
	s := sight{Phase: st.Phase, Removing: st.Removing, Made: st.Process.Pid != 0, Task: seenTask(task, has, inv.Unknown[u.id]), Process: c.seeProcess(u)}
	do := decide(s)
	if do == courseRelease && !st.Removing && due(u, st) == 0 {
		return // it lies there until somebody removes it: nothing to do, and nothing to tell each time
	}
	if do != courseNone {
		c.obs.Event(u.id, "compared with containerd", nil, "phase", string(s.Phase), "task", string(s.Task), "process", string(s.Process), "course", string(do))
	}
	switch do {
	case courseTask, courseAsk, courseLost, courseNoStart:
		c.reopenStdio(u) // what it wrote while berth was away
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
		c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit, Message: "its process was gone and containerd knew nothing of it any more"})
	case courseNoStart:
		u.giveUp(errors.New("berth stopped while it was being started"))
		c.lanes.Offer(u.id, StepSettle)
	case courseUndo:
		u.hear(exit.NotStarted(u.id, time.Now(), "berth stopped while it was being made"), false)
		c.lanes.Offer(u.id, StepSettle)
	case courseRelease:
		c.reopenStdio(u)
		c.lanes.Offer(u.id, StepRelease)
		c.lanes.Poke(u.id) // what it failed for may be over
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

// seeProcess asks the kernel about u's process, which it watches again if need be.
func (c *Controller) seeProcess(u *unit) processSight {
	if alive, watched := c.kernel.Look(u.id); watched {
		if alive {
			return processAlive
		}
		return processGone
	}
	p := u.process()
	if !u.handler.HostProcess || p.Pid == 0 {
		return processUnknown
	}
	_, err := c.kernel.Watch(u.id, p)
	switch {
	case errdefs.IsNotFound(err):
		return processGone
	case err != nil:
		c.obs.Event(u.id, "the kernel cannot watch it", err)
		return processUnseen
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
