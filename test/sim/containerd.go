// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// containerdState is what containerd and its shims hold. It is guarded by the world's lock.
type containerdState struct {
	down      bool
	objects   map[string]containers.Container
	sandboxes map[string]sandbox.Sandbox
	snaps     map[string]string // parent by key
	shims     map[string]*shim  // by ID of their first task
	tasks     map[string]*task
	subs      map[*subscription]bool
}

// shim is one per pod.
type shim struct {
	id   string
	vm   bool // what runs in it dies with it
	dead bool
}

type task struct {
	id   string
	shim *shim
	proc *process
	seen bool          // the shim knows that it ended
	done chan struct{} // closed then
}

type subscription struct {
	ch   chan *events.Envelope
	errs chan error
}

func (c *containerdState) init() {
	c.objects, c.sandboxes, c.snaps = map[string]containers.Container{}, map[string]sandbox.Sandbox{}, map[string]string{}
	c.shims, c.tasks, c.subs = map[string]*shim{}, map[string]*task{}, map[*subscription]bool{}
}

func (c *containerdState) shimOf(id string) *shim {
	if t := c.tasks[id]; t != nil {
		return t.shim
	}
	return nil
}

func (c *containerdState) left() []string {
	var left []string
	for id := range c.objects {
		left = append(left, "container object "+short(id))
	}
	for id := range c.sandboxes {
		left = append(left, "sandbox object "+short(id))
	}
	for id := range c.snaps {
		left = append(left, "snapshot "+short(id))
	}
	for id := range c.tasks {
		left = append(left, "task "+short(id))
	}
	for id := range c.shims {
		left = append(left, "shim "+short(id))
	}
	return left
}

// reap is what a shim does when its process ended: it has the status, and tells containerd.
func (c *containerdState) reap(w *World, p *process) {
	t := c.tasks[p.id]
	p.reaped = true
	if t == nil || t.proc != p || t.shim.dead || t.seen {
		return
	}
	t.seen = true
	close(t.done)
	if w.mute > 0 {
		w.mute--
		return
	}
	c.publish(p.id, p.pid, p.code, p.at)
}

func (c *containerdState) publish(id string, pid, code uint32, at time.Time) {
	c.send("/tasks/exit", &eventtypes.TaskExit{ContainerID: id, ID: id, Pid: pid, ExitStatus: code, ExitedAt: timestamppb.New(at)})
}

func (c *containerdState) send(topic string, ev any) {
	if c.down {
		return
	}
	a, err := typeurl.MarshalAny(ev)
	if err != nil {
		panic(err)
	}
	for s := range c.subs {
		select {
		case s.ch <- &events.Envelope{Timestamp: time.Now(), Namespace: "k8s.io", Topic: topic, Event: a}:
		default: // containerd's queue is bounded
		}
	}
}

// KillShim ends the shim of a pod as SIGKILL does: the pod's processes live on, and containerd, which cleans up behind
// it, claims that they ended with 137.
func (w *World) KillShim(pod string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.ctrd.shims[pod]
	if s == nil || s.dead {
		return false
	}
	w.note("*** shim dies", pod)
	s.dead = true
	for _, t := range w.ctrd.tasks {
		if t.shim == s {
			t.proc.lost = true
			if s.vm && !t.proc.ended {
				w.end(t.proc, 137)
			}
			if t.proc.ended {
				t.proc.reaped = true
			}
		}
	}
	if !w.ctrd.down {
		w.ctrd.bury(w, s)
	}
	return true
}

// bury is containerd's clean-up after a dead shim. It ends what was never started; what runs lives on here, which is what is hard.
func (c *containerdState) bury(w *World, s *shim) {
	for id, t := range c.tasks {
		if t.shim != s {
			continue
		}
		delete(c.tasks, id)
		if !t.seen {
			close(t.done)
		}
		if !t.proc.started && !t.proc.ended {
			w.end(t.proc, 137)
		}
		c.publish(id, t.proc.pid, 137, time.Now())
	}
	delete(c.shims, s.id)
}

// StopContainerd takes containerd away; shims and processes live on.
func (w *World) StopContainerd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("*** containerd goes", "")
	w.ctrd.down = true
	for s := range w.ctrd.subs {
		s.errs <- fmt.Errorf("connection closed: %w", errdefs.ErrUnavailable)
		delete(w.ctrd.subs, s)
	}
}

// StartContainerd brings it back. As it loads, it cleans up behind dead shims and deletes the tasks that have ended, unless there
// is a sandbox object with their ID.
func (w *World) StartContainerd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("*** containerd comes", "")
	c := &w.ctrd
	c.down = false
	for _, s := range c.shims {
		if s.dead {
			c.bury(w, s)
		}
	}
	for id, t := range c.tasks {
		if _, kept := c.sandboxes[id]; t.seen && !kept {
			t.proc.lost = true
			c.drop(t)
		}
	}
}

// drop deletes a task and, with its last one, the shim.
func (c *containerdState) drop(t *task) {
	delete(c.tasks, t.id)
	for _, other := range c.tasks {
		if other.shim == t.shim {
			return
		}
	}
	delete(c.shims, t.shim.id)
}

// ContainerdDown reports whether it is away.
func (w *World) ContainerdDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ctrd.down
}
