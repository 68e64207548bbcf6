// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// client makes a containerd client for one life of berth.
func (w *World) client(l *Life) (*containerd.Client, error) {
	s := services{w: w, l: l}
	return containerd.New("", containerd.WithServices(
		containerd.WithContainerStore(fakeContainers{services: s}),
		containerd.WithSandboxStore(fakeSandboxes{services: s}),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{snapshotter: fakeSnapshotter{services: s}}),
		containerd.WithTaskClient(fakeTasks{services: s}),
		containerd.WithEventService(fakeEvents{services: s}),
		containerd.WithIntrospectionService(fakeIntrospection{services: s}),
	))
}

const snapshotter = "fake"

type services struct {
	w *World
	l *Life
}

func (s services) down() error {
	if s.w.ctrd.down {
		return fmt.Errorf("dial: connection refused: %w", errdefs.ErrUnavailable)
	}
	return nil
}

func (s services) do(ctx context.Context, op, id string, effect func(c *containerdState) error) error {
	return s.w.do(ctx, s.l, op, id, func() error {
		if err := s.down(); err != nil {
			return err
		}
		return effect(&s.w.ctrd)
	})
}

func (s services) read(ctx context.Context, op, id string, look func(c *containerdState) error) error {
	return s.w.read(ctx, s.l, op, id, func() error {
		if err := s.down(); err != nil {
			return err
		}
		return look(&s.w.ctrd)
	})
}

type fakeIntrospection struct {
	services
	introspection.Service
}

func (s fakeIntrospection) Server(ctx context.Context) (*introspectionapi.ServerResponse, error) {
	return &introspectionapi.ServerResponse{}, s.read(ctx, "server", "", func(*containerdState) error { return nil })
}

type fakeEvents struct {
	services
	containerd.EventService
}

func (s fakeEvents) Subscribe(ctx context.Context, _ ...string) (ch <-chan *events.Envelope, errs <-chan error) {
	sub := &subscription{ch: make(chan *events.Envelope, maxUnread), errs: make(chan error, 1)}
	err := s.read(ctx, "subscribe", "", func(c *containerdState) error { c.subs = append(c.subs, sub); return nil })
	if err != nil {
		sub.errs <- err
		return sub.ch, sub.errs
	}
	context.AfterFunc(ctx, func() {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		s.w.ctrd.subs = slices.DeleteFunc(s.w.ctrd.subs, func(o *subscription) bool { return o == sub })
		sub.queue = nil
		select {
		case sub.errs <- ctx.Err():
		default:
		}
	})
	return sub.ch, sub.errs
}

type fakeContainers struct {
	services
	containers.Store
}

func (s fakeContainers) Create(ctx context.Context, o containers.Container) (containers.Container, error) {
	return o, s.do(ctx, "create-container", o.ID, func(c *containerdState) error { return insert(c.objects, o.ID, o) })
}

func (s fakeContainers) Delete(ctx context.Context, id string) error {
	return s.do(ctx, "delete-container", id, func(c *containerdState) error { return remove(c.objects, id) })
}

func (s fakeContainers) Get(ctx context.Context, id string) (o containers.Container, err error) {
	err = s.read(ctx, "get-container", id, func(c *containerdState) error {
		var ok bool
		if o, ok = c.objects[id]; !ok {
			return errdefs.ErrNotFound
		}
		return nil
	})
	return o, err
}

func (s fakeContainers) List(ctx context.Context, _ ...string) (all []containers.Container, err error) {
	err = s.read(ctx, "list-containers", "", func(c *containerdState) error {
		all = sorted(c.objects)
		return nil
	})
	return all, err
}

// Update replaces the spec, the only field that berth changes.
func (s fakeContainers) Update(ctx context.Context, o containers.Container, _ ...string) (out containers.Container, err error) {
	err = s.do(ctx, "update-container", o.ID, func(c *containerdState) error {
		var ok bool
		if out, ok = c.objects[o.ID]; !ok {
			return errdefs.ErrNotFound
		}
		out.Spec = o.Spec
		c.objects[o.ID] = out
		return nil
	})
	return out, err
}

func insert[T any](m map[string]T, id string, v T) error {
	if _, ok := m[id]; ok {
		return errdefs.ErrAlreadyExists
	}
	m[id] = v
	return nil
}

func remove[T any](m map[string]T, id string) error {
	if _, ok := m[id]; !ok {
		return errdefs.ErrNotFound
	}
	delete(m, id)
	return nil
}

type fakeSandboxes struct {
	services
	sandbox.Store
}

func (s fakeSandboxes) Create(ctx context.Context, o sandbox.Sandbox) (sandbox.Sandbox, error) {
	return o, s.do(ctx, "create-sandbox", o.ID, func(c *containerdState) error { return insert(c.sandboxes, o.ID, o) })
}

func (s fakeSandboxes) Delete(ctx context.Context, id string) error {
	return s.do(ctx, "delete-sandbox", id, func(c *containerdState) error { return remove(c.sandboxes, id) })
}

func (s fakeSandboxes) List(ctx context.Context, _ ...string) (all []sandbox.Sandbox, err error) {
	err = s.read(ctx, "list-sandboxes", "", func(c *containerdState) error {
		all = sorted(c.sandboxes)
		return nil
	})
	return all, err
}

type fakeSnapshotter struct {
	services
	snapshots.Snapshotter
}

func (s fakeSnapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, s.make(ctx, "prepare-snapshot", key, parent, opts)
}

func (s fakeSnapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, s.make(ctx, "view-snapshot", key, parent, opts)
}

func (s fakeSnapshotter) make(ctx context.Context, op, key, parent string, opts []snapshots.Opt) error {
	info := snapshots.Info{Name: key, Parent: parent}
	for _, o := range opts {
		if err := o(&info); err != nil {
			return err
		}
	}
	return s.do(ctx, op, key, func(c *containerdState) error { return insert(c.snaps, key, info) })
}

func (s fakeSnapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = s.read(ctx, "stat-snapshot", key, func(c *containerdState) error {
		var ok bool
		if info, ok = c.snaps[key]; !ok {
			return errdefs.ErrNotFound
		}
		return nil
	})
	return info, err
}

func (s fakeSnapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	return nil, s.read(ctx, "mounts", key, func(c *containerdState) error {
		if _, ok := c.snaps[key]; !ok {
			return errdefs.ErrNotFound
		}
		return nil
	})
}

func (s fakeSnapshotter) Remove(ctx context.Context, key string) error {
	return s.do(ctx, "remove-snapshot", key, func(c *containerdState) error { return remove(c.snaps, key) })
}

func (s fakeSnapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	var keys []string
	err := s.read(ctx, "walk-snapshots", "", func(c *containerdState) error {
		keys = slices.Sorted(maps.Keys(c.snaps))
		return nil
	})
	for _, k := range keys {
		if err := fn(ctx, snapshots.Info{Name: k}); err != nil {
			return err
		}
	}
	return err
}

type fakeTasks struct {
	services
	tasks.TasksClient
}

func (s fakeTasks) Create(ctx context.Context, r *tasks.CreateTaskRequest, _ ...grpc.CallOption) (*tasks.CreateTaskResponse, error) {
	resp := &tasks.CreateTaskResponse{ContainerID: r.ContainerID}
	return resp, s.do(ctx, "create-task", r.ContainerID, func(c *containerdState) error {
		o, ok := c.objects[r.ContainerID]
		if !ok {
			return fmt.Errorf("container %s: %w", Short(r.ContainerID), errdefs.ErrNotFound)
		}
		if c.tasks[o.ID] != nil {
			return errdefs.ErrAlreadyExists
		}
		t, err := c.make(s.w, o, isRestored(r.Options))
		if err == nil {
			resp.Pid = t.proc.pid
		}
		return err
	})
}

// isRestored reports whether a task with these options is restored from a checkpoint.
func isRestored(options *anypb.Any) bool {
	var o runcoptions.Options
	return options != nil && typeurl.UnmarshalTo(options, &o) == nil && o.GetCriuImagePath() != ""
}

// CutRestores cuts the next restores off: the process runs, and its shim does not know it.
func (w *World) CutRestores(times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutRestores = times
}

// make makes the task of a container, and the shim of a pod with its first task. A task that is
// restored gets its process when it is started.
func (c *containerdState) make(w *World, o containers.Container, restored bool) (*task, error) {
	sh := c.shims[o.SandboxID]
	switch {
	case o.SandboxID == "":
		sh = &shim{id: o.ID, vm: o.Runtime.Name == "vm"}
		c.shims[o.ID] = sh
	case sh == nil || sh.dead:
		return nil, fmt.Errorf("shim of sandbox %s: %w", Short(o.SandboxID), errdefs.ErrNotFound)
	}
	t := &task{id: o.ID, pod: o.SandboxID, shim: sh, done: make(chan struct{})}
	if t.proc = (&Process{ID: o.ID}); !restored {
		t.proc = w.spawn(o.ID)
	}
	t.proc.VM, t.proc.spec = sh.vm, o.Spec
	c.tasks[o.ID] = t
	return t, nil
}

func (c *containerdState) live(id string) (*task, error) {
	t := c.tasks[id]
	if t == nil {
		return nil, fmt.Errorf("task %s: %w", Short(id), errdefs.ErrNotFound)
	}
	if t.shim.dead {
		return nil, fmt.Errorf("shim of %s: connection closed: %w", Short(id), errdefs.ErrUnavailable)
	}
	return t, nil
}

func (s fakeTasks) Start(ctx context.Context, r *tasks.StartRequest, _ ...grpc.CallOption) (*tasks.StartResponse, error) {
	return &tasks.StartResponse{}, s.do(ctx, "start-task", r.ContainerID, func(c *containerdState) error {
		t, err := c.live(r.ContainerID)
		if err != nil {
			return err
		}
		if t.proc.Started || t.proc.Ended {
			return errdefs.ErrFailedPrecondition
		}
		if t.unborn() {
			made := s.w.spawn(t.id)
			made.spec = t.proc.spec
			if s.w.cutRestores > 0 {
				s.w.cutRestores--
				made.Started = true
				return errors.New("OCI runtime restore failed: signal: killed")
			}
			t.proc = made
		}
		t.proc.Started, t.proc.startedAt = true, time.Now()
		return nil
	})
}

func (s fakeTasks) Update(ctx context.Context, r *tasks.UpdateTaskRequest, _ ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.do(ctx, "update-task", r.ContainerID, func(c *containerdState) error {
		t, err := c.live(r.ContainerID)
		if err != nil {
			return err
		}
		if t.proc.Ended {
			return fmt.Errorf("container not running: %w", errdefs.ErrFailedPrecondition)
		}
		res := &specs.LinuxResources{}
		if err := json.Unmarshal(r.GetResources().GetValue(), res); err != nil {
			return err
		}
		t.proc.Updates = append(t.proc.Updates, res)
		return nil
	})
}

func (s fakeTasks) Kill(ctx context.Context, r *tasks.KillRequest, _ ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.do(ctx, "kill-task", r.ContainerID, func(c *containerdState) error {
		t, err := c.live(r.ContainerID)
		if err != nil {
			return err
		}
		if t.unborn() {
			return fmt.Errorf("container of task %s does not exist: %w", Short(t.id), errdefs.ErrNotFound)
		}
		return s.w.signal(t.proc, r.Signal)
	})
}

func (s fakeTasks) Delete(ctx context.Context, r *tasks.DeleteTaskRequest, _ ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	resp := &tasks.DeleteResponse{}
	return resp, s.do(ctx, "delete-task", r.ContainerID, func(c *containerdState) error {
		t, err := c.live(r.ContainerID)
		if err != nil {
			return err
		}
		if !t.seen && !t.unborn() {
			return fmt.Errorf("task %s must be stopped before deletion: %w", Short(t.id), errdefs.ErrFailedPrecondition)
		}
		if t.unborn() {
			close(t.done)
		}
		resp.ExitStatus, resp.ExitedAt = t.proc.Code, timestamppb.New(t.proc.Stamp)
		c.drop(s.w, t)
		return nil
	})
}

func (s fakeTasks) Get(ctx context.Context, r *tasks.GetRequest, _ ...grpc.CallOption) (*tasks.GetResponse, error) {
	resp := &tasks.GetResponse{}
	return resp, s.read(ctx, "get-task", r.ContainerID, func(c *containerdState) error {
		t, err := c.live(r.ContainerID)
		if err != nil {
			return err
		}
		p := &tasktypes.Process{ID: t.id, Pid: t.proc.pid, Status: tasktypes.Status_CREATED}
		switch {
		case t.seen:
			p.Status, p.ExitStatus, p.ExitedAt = tasktypes.Status_STOPPED, t.proc.Code, timestamppb.New(t.proc.Stamp)
		case t.proc.Started:
			p.Status = tasktypes.Status_RUNNING
		}
		resp.Process = p
		return nil
	})
}

func (s fakeTasks) List(ctx context.Context, _ *tasks.ListTasksRequest, _ ...grpc.CallOption) (*tasks.ListTasksResponse, error) {
	resp := &tasks.ListTasksResponse{}
	return resp, s.read(ctx, "list-tasks", "", func(c *containerdState) error {
		for _, t := range sorted(c.tasks) {
			if !t.hidden {
				resp.Tasks = append(resp.Tasks, &tasktypes.Process{ID: t.id})
			}
		}
		return nil
	})
}

func (s fakeTasks) Wait(ctx context.Context, r *tasks.WaitRequest, _ ...grpc.CallOption) (*tasks.WaitResponse, error) {
	var t *task
	var waiter int
	if err := s.read(ctx, "wait-task", r.ContainerID, func(c *containerdState) (err error) {
		if t, err = c.live(r.ContainerID); err == nil {
			t.waiters++
			t.waiting++
			waiter = t.waiters
		}
		return err
	}); err != nil {
		return nil, err
	}
	defer func() {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		t.waiting--
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.l.gone:
		return nil, ErrKilled
	case <-t.done:
	}
	s.w.turns.take(fmt.Sprint("waited for task ", t.id, " ", waiter))
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !t.seen || s.w.ctrd.down { // the shim died, or containerd did
		return nil, fmt.Errorf("wait for task %s: connection closed: %w", Short(t.id), errdefs.ErrUnavailable)
	}
	return &tasks.WaitResponse{ExitStatus: t.proc.Code, ExitedAt: timestamppb.New(t.proc.Stamp)}, nil
}
