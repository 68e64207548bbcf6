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

// containerdState is the state of containerd and its shims. It is guarded by the world's lock.
type containerdState struct {
	down      bool
	objects   map[string]containers.Container
	sandboxes map[string]sandbox.Sandbox
	snaps     map[string]snapshots.Info
	// by each ID that they serve: of their first task, or of sandboxes without a process
	shims map[string]*shim
	tasks map[string]*task
	subs  []*subscription
}

type task struct {
	id      string
	pod     string // the sandbox that its container is in
	shim    *shim
	proc    *Process
	seen    bool          // its shim knows that the process ended
	told    bool          // and has published it
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
		s.queue = append(s.queue, &events.Envelope{Timestamp: w.wall(), Namespace: "k8s.io", Topic: topic, Event: a})
		go s.deliver(w)
	}
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
			c.drop(w, t)
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
