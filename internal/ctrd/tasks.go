// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/pod"
)

// CreateTask makes a task and its process, which waits to be started.
func (c *Containerd) CreateTask(ctx context.Context, r pod.TaskRequest) (uint32, error) {
	ctx = ns(ctx)
	req := &tasks.CreateTaskRequest{
		ContainerID: r.ID, Stdin: r.IO.Stdin, Stdout: r.IO.Stdout, Stderr: r.IO.Stderr, Terminal: r.IO.Terminal,
		TaskApiAddress: r.Endpoint.Address, TaskApiVersion: r.Endpoint.Version,
	}
	if r.SnapshotKey != "" {
		ms, err := c.client.SnapshotService(r.Snapshotter).Mounts(ctx, r.SnapshotKey)
		if err != nil {
			return 0, fmt.Errorf("create task %s: mounts of its snapshot: %w", r.ID, native(err))
		}
		req.Rootfs = toProto(ms)
	}
	resp, err := c.client.TaskService().Create(ctx, req)
	if err != nil {
		return 0, fmt.Errorf("create task %s: %w", r.ID, native(err))
	}
	return resp.Pid, nil
}

func toProto(ms []mount.Mount) []*types.Mount {
	out := make([]*types.Mount, len(ms))
	for i, m := range ms {
		out[i] = &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
	}
	return out
}

// StartTask lets the task's process run the user's program.
func (c *Containerd) StartTask(ctx context.Context, id string) error {
	if _, err := c.client.TaskService().Start(ns(ctx), &tasks.StartRequest{ContainerID: id}); err != nil {
		return fmt.Errorf("start task %s: %w", id, native(err))
	}
	return nil
}

// KillTask signals the task's init process.
func (c *Containerd) KillTask(ctx context.Context, id string, sig unix.Signal) error {
	_, err := c.client.TaskService().Kill(ns(ctx), &tasks.KillRequest{ContainerID: id, Signal: uint32(sig)}) //nolint:gosec // a signal
	if err != nil {
		return fmt.Errorf("kill task %s: %w", id, native(err))
	}
	return nil
}

// DeleteTask deletes the task. containerd keeps a list of tasks and a list of shims; a task that is not in
// the one may still be in the other, so that "not found" is asked back, and what neither knows of is looked for.
func (c *Containerd) DeleteTask(ctx context.Context, id string) error {
	ctx = ns(ctx)
	_, err := c.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if err == nil {
		return nil
	}
	err = native(err)
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete task %s: %w", id, err)
	}
	resp, gerr := c.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if gerr = native(gerr); errdefs.IsNotFound(gerr) {
		if serr := c.endStrays(ctx, id); serr != nil {
			return fmt.Errorf("delete task %s: %w", id, serr) // and not "not found", which is success
		}
		return err
	}
	if gerr != nil {
		return fmt.Errorf("delete task %s: is it gone? %w", id, gerr)
	}
	return fmt.Errorf("delete task %s: containerd says that it is not found, and that it is %s", id, resp.GetProcess().GetStatus())
}

// TaskState asks for a task.
func (c *Containerd) TaskState(ctx context.Context, id string) (pod.TaskState, error) {
	resp, err := c.client.TaskService().Get(ns(ctx), &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return pod.TaskState{}, fmt.Errorf("ask task %s: %w", id, native(err))
	}
	p := resp.GetProcess()
	st := pod.TaskState{Pid: p.GetPid()}
	switch p.GetStatus() {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		st.Running = true
	case task.Status_STOPPED:
		st.Stopped, st.Code, st.ExitedAt = true, p.GetExitStatus(), p.GetExitedAt().AsTime()
	case task.Status_UNKNOWN:
		return st, fmt.Errorf("ask task %s: its shim does not say: %w", id, errdefs.ErrUnavailable)
	}
	return st, nil
}

// WaitTask waits for the shim's word on the end of the task's process.
func (c *Containerd) WaitTask(ctx context.Context, id string) (pod.TaskState, error) {
	r, err := c.client.TaskService().Wait(ns(ctx), &tasks.WaitRequest{ContainerID: id})
	if err != nil {
		return pod.TaskState{}, fmt.Errorf("wait for task %s: %w", id, native(err))
	}
	return pod.TaskState{Stopped: true, Code: r.ExitStatus, ExitedAt: r.ExitedAt.AsTime()}, nil
}
