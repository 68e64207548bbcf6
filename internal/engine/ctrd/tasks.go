// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
)

const (
	// taskTimeout bounds a question about one task. It is as long as containerd itself waits for
	// the shim.
	taskTimeout = 2 * time.Second
	// createAttempts is how often the making of a task is tried while something of an earlier
	// attempt is in its way.
	createAttempts = 3
)

// CreateTask implements [pod.Tasks]. It first removes the remains of an interrupted earlier call,
// unless the task runs, which is ErrAlreadyExists. The caller ensures that no other call works on
// the task. If the container is restored, the shim opens its stdio when RestoreTask is called.
func (c *Containerd) CreateTask(ctx context.Context, r pod.TaskRequest) (uint32, error) {
	if c.shims.HasEnded(r.Pod) { // containerd may be about to notice
		return 0, fmt.Errorf("create task %s: the shim of pod %s has ended: %w", r.ID, r.Pod, errdefs.ErrNotFound)
	}
	if err := c.asker.reachable(ctx, r.Pod); err != nil {
		return 0, fmt.Errorf("create task %s in pod %s: %w", r.ID, r.Pod, err)
	}
	ctx = connection.Namespaced(ctx)
	req := &tasks.CreateTaskRequest{
		ContainerID:    r.ID,
		Stdin:          r.IO.Stdin,
		Stdout:         r.IO.Stdout,
		Stderr:         r.IO.Stderr,
		Terminal:       r.IO.Terminal,
		TaskApiAddress: r.Endpoint.Address,
		TaskApiVersion: r.Endpoint.Version,
	}
	label := ""
	if r.SnapshotKey != "" {
		req.RuntimePath = c.cleanupProgram(ctx, r.ID)
		var err error
		if label, err = mountLabel(ctx, c, r.ID); err != nil {
			return 0, fmt.Errorf("create task %s: %w", r.ID, err)
		}
	}
	if r.Restore != nil {
		opts, err := restoring(ctx, c, r.ID, *r.Restore)
		if err != nil {
			return 0, fmt.Errorf("create task %s: %w", r.ID, err)
		}
		req.Options = opts
	}
	synced := false
	create := func() (*tasks.CreateTaskResponse, error) {
		if r.SnapshotKey != "" {
			ms, err := c.Mounts(ctx, r.Snapshotter, r.SnapshotKey, label, synced)
			if err != nil {
				return nil, fmt.Errorf("mounts of its snapshot: %w", err)
			}
			req.Rootfs = toProto(ms)
		}
		resp, err := c.client.TaskService().Create(ctx, req)
		return resp, c.asker.full(err)
	}
	c.replaced.makeAgain(r.ID)
	resp, err := create()
	if err != nil && c.Unsynced() && says(err, notMounted, r.ID) {
		// The kernel mounts no layer without syncs while the file system has an error that was not
		// reported yet: a write to the disk has failed.
		c.log.Warn("layer mounted with syncs because a write to its disk has failed", "id", r.ID, "err", err)
		synced = true
		resp, err = create()
	}
	for again := 1; again < createAttempts && cutOff(r, connection.Native(err)); again++ {
		c.log.Info("unfinished task of an earlier call removed", "id", r.ID, "err", err)
		c.replaced.make(r.ID)
		if terr := takeBack(ctx, c, r.ID); terr != nil {
			return 0, fmt.Errorf("create task %s: %w: undo an earlier call: %w", r.ID, connection.Native(err), terr)
		}
		resp, err = create()
	}
	if err != nil && r.SnapshotKey != "" && says(err, notThere, r.ID) {
		return 0, fmt.Errorf("create task %s: %w: %w", r.ID, pod.ErrLayerLost, connection.Native(err))
	}
	if err != nil && r.Pod != "" && says(err, noSocket, r.Pod) && !c.shims.HasEnded(r.Pod) {
		return 0, fmt.Errorf("create task %s: shim %s of its pod has lost its socket, recreate the pod: %w: %w", r.ID, c.shims.Key(r.Pod), errdefs.ErrFailedPrecondition, connection.Native(err))
	}
	if err != nil {
		return 0, fmt.Errorf("create task %s: %w", r.ID, connection.Native(err))
	}
	c.replaced.made(r.ID, resp.Pid)
	c.shims.Remember(cmp.Or(r.Pod, r.ID), resp.Pid) // a pod's own task has a shim to itself
	return resp.Pid, nil
}

// mountLabel returns the SELinux label of a container's root file system; "" for none. Only a host
// with SELinux pays for the question.
func mountLabel(ctx context.Context, c *Containerd, id string) (string, error) {
	if !selinux.GetEnabled() {
		return "", nil
	}
	o, err := c.client.ContainerService().Get(ctx, id)
	if err != nil {
		return "", connection.Native(err)
	}
	var spec struct {
		Linux struct {
			MountLabel string `json:"mountLabel"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(o.Spec.GetValue(), &spec); err != nil {
		return "", fmt.Errorf("read its specification: %w", err)
	}
	return spec.Linux.MountLabel, nil
}

// cutOff reports whether a container's task may not have been made because of an earlier call that
// was cut off. The shim may have carried that out all the same, so that the task exists. Or
// containerd is still undoing it: then the bundle is in the way, or the new one is removed instead,
// which containerd reports as an error of a file in it. An error reported by the OCI runtime is
// about the call itself. A pod's own task has an ID that was never used before.
func cutOff(r pod.TaskRequest, err error) bool {
	if err == nil || r.SnapshotKey == "" {
		return false
	}
	return errdefs.IsAlreadyExists(err) || says(err, ofBundle, r.ID) && !says(err, ofRuntime, r.ID)
}

// takeBack deletes a task that was made and not started.
func takeBack(ctx context.Context, c *Containerd, id string) error {
	st, err := c.TaskState(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
	case err != nil:
		return err
	case st.Running:
		return fmt.Errorf("it runs: %w", errdefs.ErrAlreadyExists)
	case !st.Stopped && st.Pid == 0: // it was to be restored, so there is no process
	case !st.Stopped:
		if err := c.KillTask(ctx, id, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, taskTimeout)
		defer cancel()
		if _, err := c.WaitTask(wait, id); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := c.DeleteTask(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// replaced holds the tasks that were deleted, or made in the place of deleted ones, by ID. The end
// of an earlier one is not reported, because it would be taken for that of the new task:
// containerd's events arrive later than its answers.
type replaced struct {
	mu sync.Mutex
	by map[string]replacement
}

// replacement is the task that comes after a deleted one.
type replacement struct {
	making bool
	pid    uint32 // 0 before it is made
}

func (r *replaced) set(id string, n replacement) {
	if r.by == nil {
		r.by = map[string]replacement{}
	}
	r.by[id] = n
}

// deleted notes that the task of an ID is deleted.
func (r *replaced) deleted(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.by[id]; !ok {
		r.set(id, replacement{})
	}
}

// make notes that a task is about to be made in the place of another.
func (r *replaced) make(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(id, replacement{making: true})
}

// makeAgain is make for an ID of which another task was deleted.
func (r *replaced) makeAgain(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.by[id]; ok {
		r.set(id, replacement{making: true})
	}
}

// made notes the process of a task that was made in the place of another.
func (r *replaced) made(id string, pid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.by[id]; ok && n.making {
		r.set(id, replacement{pid: pid})
	}
}

// earlier reports whether a process belongs to a task that was replaced. While the task is being
// made, any is; so is process 0, of which containerd reports the end when it has lost the shim.
func (r *replaced) earlier(id string, pid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[id]
	return now.making || now.pid != 0 && now.pid != pid
}

func (r *replaced) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, id)
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
	_, err := askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*tasks.StartResponse, error) {
		return c.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id})
	})
	if err != nil {
		return fmt.Errorf("start task %s: %w", id, connection.Native(err))
	}
	return nil
}

// KillTask signals the task's init process.
func (c *Containerd) KillTask(ctx context.Context, id string, sig unix.Signal) error {
	_, err := askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(sig)})
	})
	if err != nil {
		return fmt.Errorf("kill task %s: %w", id, connection.Native(err))
	}
	return nil
}

// DeleteTask deletes the task. Containerd keeps a list of tasks and a list of shims, and a task
// that is missing from the one may still be in the other. So a deletion that finds nothing is
// followed by a question, and a task that is in neither list is looked for on the node before "not
// found" is believed. Containerd also reports a task as deleted when its bundle could not be,
// because remains of an earlier one were in the way.
func (c *Containerd) DeleteTask(ctx context.Context, id string) error {
	c.replaced.deleted(id)
	_, err := askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*tasks.DeleteResponse, error) {
		return c.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	})
	if err == nil {
		if !c.shims.BundleLeft(id) {
			return nil
		}
		if err := c.endLeft(connection.Namespaced(ctx), id); err != nil {
			return fmt.Errorf("delete task %s: %w", id, err)
		}
		return nil
	}
	err = connection.Native(err)
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete task %s: %w", id, err)
	}
	status, gerr := c.taskStatus(ctx, id)
	if errdefs.IsNotFound(gerr) {
		if oerr := c.endLeft(connection.Namespaced(ctx), id); oerr != nil {
			return fmt.Errorf("delete task %s: %w", id, oerr) // and not "not found", which counts as success
		}
		return err
	}
	if gerr != nil {
		return fmt.Errorf("delete task %s: is it gone? %w", id, gerr)
	}
	return fmt.Errorf("delete task %s: containerd answers that it is not found, and also that it is %s", id, status.GetStatus())
}

// TaskState asks for the state of a task. It takes taskTimeout at most, even if the shim does not
// answer.
func (c *Containerd) TaskState(ctx context.Context, id string) (pod.TaskState, error) {
	p, err := c.taskStatus(ctx, id)
	if err != nil {
		return pod.TaskState{}, fmt.Errorf("ask for task %s: %w", id, err)
	}
	st := pod.TaskState{Pid: p.GetPid()}
	switch p.GetStatus() {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		st.Running = true
	case task.Status_STOPPED:
		st.Stopped, st.Code = true, p.GetExitStatus()
		// The shim of gVisor says for a moment that a task has stopped with 0 before it knows the code.
		if at := p.GetExitedAt().AsTime(); at.Unix() <= 0 && st.Code == 0 {
			st.NoCode = true
		} else {
			st.ExitedAt = c.clock.Instant(at)
		}
	case task.Status_UNKNOWN:
		return st, fmt.Errorf("get state of task %s: its shim does not report it: %w", id, errdefs.ErrUnavailable)
	}
	return st, nil
}

func (c *Containerd) taskStatus(ctx context.Context, id string) (*task.Process, error) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(ctx), taskTimeout)
	defer cancel()
	resp, err := askShim(ctx, c.asker, id, func(ctx context.Context) (*tasks.GetResponse, error) {
		return c.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	})
	return resp.GetProcess(), connection.Native(err)
}

// WaitTask returns when the task's process has ended, with the shim's knowledge of its end.
func (c *Containerd) WaitTask(ctx context.Context, id string) (pod.TaskState, error) {
	r, err := askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*tasks.WaitResponse, error) {
		return c.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	})
	if err != nil {
		return pod.TaskState{}, fmt.Errorf("wait for task %s: %w", id, connection.Native(err))
	}
	return pod.TaskState{Stopped: true, Code: r.ExitStatus, ExitedAt: c.clock.Instant(r.ExitedAt.AsTime())}, nil
}
