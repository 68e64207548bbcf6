// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"maps"
	"slices"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// containerdState is what containerd and its shims have. It is guarded by the world's lock.
type containerdState struct {
	down      bool
	objects   map[string]containers.Container
	sandboxes map[string]sandbox.Sandbox
	snaps     map[string]snapshots.Info
	shims     map[string]*shim // by ID of their first task
	tasks     map[string]*task
	subs      []*subscription
}

// shim is the shim of a pod.
type shim struct {
	id   string
	vm   bool // its processes die with it
	dead bool
	// stays says that it is a sandbox without a process: it does not end with the last of its tasks.
	stays bool
}

type task struct {
	id      string
	shim    *shim
	proc    *Process
	seen    bool          // its shim knows that the process ended
	told    bool          // its shim has published that
	done    chan struct{} // closed when seen, or when the shim died
	waiters int           // calls that waited for it so far
	waiting int           // calls that wait for it now
	hidden  bool          // it is a sandbox controller's, which no list shows
}

// unborn reports whether the task is of a container that is restored, and was not yet.
func (t *task) unborn() bool { return t.proc.pid == 0 }

type subscription struct {
	queue []*events.Envelope // on their way
	ch    chan *events.Envelope
	errs  chan error
}

const (
	// maxQueue is how many events are on their way to a subscriber.
	maxQueue = 4096
	// maxUnread is how many a subscriber may leave unread before it misses some.
	maxUnread = 512
)

// deliver hands over the first event that is on its way.
func (s *subscription) deliver(w *World) {
	w.turns.take("event")
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(s.queue) == 0 {
		return // the connection is lost
	}
	ev := s.queue[0]
	s.queue = s.queue[1:]
	select {
	case s.ch <- ev:
	default:
	}
}

func (c *containerdState) init() {
	c.objects, c.sandboxes, c.snaps = map[string]containers.Container{}, map[string]sandbox.Sandbox{}, map[string]snapshots.Info{}
	c.shims, c.tasks = map[string]*shim{}, map[string]*task{}
}

func (c *containerdState) shimOf(id string) *shim {
	if t := c.tasks[id]; t != nil {
		return t.shim
	}
	return nil
}

func (c *containerdState) left() []string {
	left := named(nil, "container object", c.objects)
	left = named(left, "sandbox object", c.sandboxes)
	left = named(left, "snapshot", c.snaps)
	left = named(left, "task", c.tasks)
	return named(left, "shim", c.shims)
}

// reap is what a shim does when its process ended: it takes the status, and publishes it.
func (c *containerdState) reap(w *World, p *Process) {
	t := c.tasks[p.ID]
	p.reaped = true
	if t == nil || t.proc != p || t.shim.dead || t.seen {
		return
	}
	t.seen = true
	close(t.done)
	if w.Gap == 0 {
		c.tell(w, t)
		return
	}
	time.AfterFunc(w.Gap, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.tell(w, t)
	})
}

// tell publishes the end of a task, unless the shim has died meanwhile.
func (c *containerdState) tell(w *World, t *task) {
	if t.told = true; t.shim.dead {
		return
	}
	if w.lostEvents > 0 {
		w.lostEvents--
		return
	}
	c.publish(w, t.id, t.proc.pid, t.proc.Code, t.proc.At)
}

func (c *containerdState) publish(w *World, id string, pid, code uint32, at time.Time) {
	c.send(w, "/tasks/exit", &eventtypes.TaskExit{ContainerID: id, ID: id, Pid: pid, ExitStatus: code, ExitedAt: timestamppb.New(at)})
}

func (c *containerdState) send(w *World, topic string, ev any) {
	if c.down {
		return
	}
	a, err := typeurl.MarshalAny(ev)
	if err != nil {
		panic(err)
	}
	for _, s := range c.subs {
		if len(s.queue) == maxQueue {
			continue // the queue is bounded: the event is lost
		}
		s.queue = append(s.queue, &events.Envelope{Timestamp: time.Now(), Namespace: "k8s.io", Topic: topic, Event: a})
		go s.deliver(w)
	}
}

// KillShim ends the shim of a pod as SIGKILL does. The pod's processes live on, and containerd,
// which cleans up after the shim, claims that they ended with 137.
func (w *World) KillShim(pod string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.ctrd.shims[pod]
	if s == nil || s.dead {
		return false
	}
	w.note("*** shim dies", pod)
	w.loseShim(s)
	if !w.ctrd.down {
		w.ctrd.cleanUp(w, s)
	}
	return true
}

// Unrestored reports whether the shim of an ID died before it was asked to restore its process.
func (w *World) Unrestored(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unrestored[id]
}

// loseShim ends a shim. The world must be locked.
func (w *World) loseShim(s *shim) {
	s.dead = true
	for _, t := range sorted(w.ctrd.tasks) {
		if t.shim == s {
			t.proc.Lost = true
			w.unrestored[t.id] = w.unrestored[t.id] || t.unborn()
			if s.vm && !t.proc.Ended {
				w.end(t.proc, 137)
			}
			if t.proc.Ended {
				t.proc.reaped = true
			}
		}
	}
}

// cleanUp is what containerd does after a shim died. It ends processes that were not started. Those
// that run live on, which is the harder case for berth.
func (c *containerdState) cleanUp(w *World, s *shim) {
	for _, t := range sorted(c.tasks) {
		if t.shim != s {
			continue
		}
		id := t.id
		delete(c.tasks, id)
		if !t.seen {
			close(t.done)
		}
		if !t.proc.Started && !t.proc.Ended && !t.unborn() {
			w.end(t.proc, 137)
		}
		c.publish(w, id, t.proc.pid, 137, time.Now())
	}
	if s.stays {
		c.publish(w, s.id, 0, 137, time.Now()) // of the shim's own bundle
	}
	delete(c.shims, s.id)
}

// StopContainerd ends containerd; shims and processes live on.
func (w *World) StopContainerd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("*** containerd ends", "")
	w.ctrd.down = true
	for _, s := range w.ctrd.subs {
		s.errs <- fmt.Errorf("connection closed: %w", errdefs.ErrUnavailable)
		s.queue = nil
	}
	w.ctrd.subs = nil
}

// StartContainerd starts containerd again. As it loads, it cleans up after dead shims, and deletes
// the tasks that have ended, unless there is a sandbox object with their ID.
func (w *World) StartContainerd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("*** containerd starts", "")
	c := &w.ctrd
	c.down = false
	for _, s := range sorted(c.shims) {
		if s.dead {
			c.cleanUp(w, s)
		}
	}
	for _, t := range sorted(c.tasks) {
		if _, kept := c.sandboxes[t.id]; t.seen && !kept {
			t.proc.Lost = true
			c.drop(t)
		}
	}
}

// sorted lists a map's values by their keys.
func sorted[T any](m map[string]T) []T {
	list := make([]T, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[k])
	}
	return list
}

// drop deletes a task, and its shim with the last of its tasks.
func (c *containerdState) drop(t *task) {
	delete(c.tasks, t.id)
	if t.shim.stays {
		return
	}
	for _, other := range c.tasks {
		if other.shim == t.shim {
			return
		}
	}
	delete(c.shims, t.shim.id)
}

// Waiting is how many calls wait for the end of the task of id.
func (w *World) Waiting(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.ctrd.tasks[id]; t != nil {
		return t.waiting
	}
	return 0
}

// SnapshotLabels are the labels of a snapshot; nil when there is none.
func (w *World) SnapshotLabels(key string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ctrd.snaps[key].Labels
}

// ContainerdDown reports whether containerd does not run.
func (w *World) ContainerdDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ctrd.down
}
