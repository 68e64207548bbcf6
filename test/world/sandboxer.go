// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/engine/ctrd"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
)

// runtime is the adapter of containerd, but for the sandbox controllers of containerd's, which no
// client without a connection has.
type runtime struct {
	*ctrd.Containerd
	tasks fakeTasks
}

// DeleteTask implements pod.Runtime. A task that containerd does not know is looked for on the
// node.
func (r runtime) DeleteTask(ctx context.Context, id string) error {
	err := r.Containerd.DeleteTask(ctx, id)
	if errdefs.IsNotFound(err) {
		if why := r.tasks.w.asked("search", id); why != nil {
			return fmt.Errorf("delete task %s: %w", id, why)
		}
	}
	return err
}

// EndLeft implements pod.Runtime.
func (r runtime) EndLeft(ctx context.Context, id string) error {
	if why := r.tasks.w.asked("search", id); why != nil {
		return fmt.Errorf("end the remains of %s: %w", id, why)
	}
	return r.Containerd.EndLeft(ctx, id)
}

// Sandboxer implements pod.Runtime.
func (r runtime) Sandboxer(string) pod.Sandboxer { return sandboxer{r} }

// StartShim implements pod.Runtime.
func (r runtime) StartShim(ctx context.Context, req pod.SandboxRequest) error {
	return r.tasks.do(ctx, "start-shim", req.ID, func(c *containerdState) error {
		if sh := c.shims[req.ID]; sh != nil && !sh.dead {
			return errdefs.ErrAlreadyExists
		}
		c.startShim(req.ID, req.Group)
		return nil
	})
}

// ShimDied implements pod.Runtime.
func (r runtime) ShimDied(_ context.Context, id string) bool {
	r.tasks.w.mu.Lock()
	defer r.tasks.w.mu.Unlock()
	sh := r.tasks.w.ctrd.shims[id]
	return sh != nil && sh.dead
}

// EndShim implements pod.Runtime.
func (r runtime) EndShim(ctx context.Context, id string) error {
	return r.tasks.do(ctx, "end-shim", id, func(c *containerdState) error {
		sh := c.shims[id]
		if sh == nil {
			if rule := r.tasks.w.match("search", id); rule != nil {
				return fmt.Errorf("end shim %s: %w", id, rule.err)
			}
			return errdefs.ErrNotFound
		}
		c.endShim(r.tasks.w, id)
		r.tasks.l.groups.leave(id)
		return nil
	})
}

// JoinGroup implements pod.Runtime.
func (r runtime) JoinGroup(_ context.Context, id string, h pod.Handler) string {
	r.tasks.w.mu.Lock()
	defer r.tasks.w.mu.Unlock()
	if h.ShimPods < 2 {
		return ""
	}
	return r.tasks.l.groups.join(&r.tasks.w.ctrd, id, h.ShimPods)
}

// RejoinGroup implements pod.Runtime.
func (r runtime) RejoinGroup(id, group string, _ pod.Handler, stays bool) {
	r.tasks.w.mu.Lock()
	defer r.tasks.w.mu.Unlock()
	if g := r.tasks.l.groups; stays {
		g[group] = append(g[group], id)
	}
}

// LeaveGroup implements pod.Runtime.
func (r runtime) LeaveGroup(id string) {
	r.tasks.w.mu.Lock()
	defer r.tasks.w.mu.Unlock()
	r.tasks.l.groups.leave(id)
}

// sandboxer stands for a sandbox controller. Its sandboxes are not tasks that a list shows, and
// have a PID once they run.
type sandboxer struct{ runtime }

func (s sandboxer) Create(ctx context.Context, r pod.SandboxRequest) (pod.Instance, error) {
	return pod.Instance{}, s.tasks.do(ctx, "create-task", r.ID, func(c *containerdState) error {
		t, err := c.make(s.tasks.w, containers.Container{ID: r.ID, Runtime: containers.RuntimeInfo{Name: r.Handler.Type}}, false)
		if err == nil {
			t.hidden = true
		}
		return err
	})
}

func (s sandboxer) Start(ctx context.Context, id string) (pod.Instance, error) {
	if err := s.StartTask(ctx, id); err != nil {
		return pod.Instance{}, err
	}
	st, err := s.TaskState(ctx, id)
	return pod.Instance{Pid: st.Pid, Endpoint: state.Endpoint{Address: "ttrpc+unix:///" + id, Version: 3}}, err
}

func (s sandboxer) Stop(ctx context.Context, id string, _ time.Duration) error {
	return s.KillTask(ctx, id, unix.SIGKILL)
}

func (s sandboxer) Wait(ctx context.Context, id string) (pod.TaskState, error) {
	return s.WaitTask(ctx, id)
}

func (s sandboxer) Status(ctx context.Context, id string) (pod.TaskState, error) {
	return s.TaskState(ctx, id)
}

func (s sandboxer) Shutdown(ctx context.Context, id string) error { return s.DeleteTask(ctx, id) }
