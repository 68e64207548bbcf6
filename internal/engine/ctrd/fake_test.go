// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
)

// fake is a containerd whose shims may hang. The zero fake has nothing.
type fake struct {
	mu         sync.Mutex
	containers map[string]containers.Container
	tasks      map[string]*task.Process
	pid        uint32          // the last one
	hung       map[string]bool // tasks whose shim answers nothing
	delay      time.Duration   // until a shim that does not hang answers
	stubborn   bool            // a call to a hung shim does not even return when its context ends
	end        chan struct{}   // stubborn calls return when it is closed
	pause      error           // what a shim answers that is asked to pause

	waiting atomic.Int32 // calls that wait for a hung shim
}

// adapter makes a Containerd on the fake.
func (f *fake) adapter(t testing.TB) *Containerd {
	t.Helper()
	f.end = make(chan struct{})
	client, err := containerd.New("", containerd.WithServices(
		containerd.WithContainerStore(fakeContainers{f: f}),
		containerd.WithSandboxStore(fakeSandboxes{}),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"fake": fakeSnapshots{}}),
		containerd.WithTaskClient(fakeTasks{f: f}),
	))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	return New(connection.Through(client), Config{
		Owner:       "owner",
		Snapshotter: "fake",
		Shims:       shims.New(shims.Config{Logger: log}),
		Logger:      log,
	})
}

// add makes a container with a running task in the pod's shim; pod is "" for a sandbox of its own.
func (f *fake) add(id, pod string, hung bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.containers == nil {
		f.containers, f.tasks, f.hung = map[string]containers.Container{}, map[string]*task.Process{}, map[string]bool{}
	}
	f.containers[id] = containers.Container{ID: id, SandboxID: pod, Labels: map[string]string{connection.LabelOwner: "owner"}}
	f.tasks[id] = &task.Process{ID: id, Status: task.Status_RUNNING}
	f.hung[id] = hung
}

// shim passes a call on to the shim of a task.
func (f *fake) shim(ctx context.Context, id string) (*task.Process, error) {
	f.mu.Lock()
	p, ok := f.tasks[id]
	hung := f.hung[id]
	f.mu.Unlock()
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	if !hung && f.delay == 0 {
		return p, ctx.Err()
	}
	if !hung {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(f.delay):
			return p, nil
		}
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	done := ctx.Done()
	if f.stubborn {
		done = nil
	}
	select {
	case <-done:
		return nil, ctx.Err()
	case <-f.end:
		return nil, errors.New("the test ends")
	}
}

type fakeContainers struct {
	containers.Store
	f *fake
}

func (s fakeContainers) List(context.Context, ...string) ([]containers.Container, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	var all []containers.Container
	for _, o := range s.f.containers {
		all = append(all, o)
	}
	return all, nil
}

func (s fakeContainers) Get(_ context.Context, id string) (containers.Container, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	o, ok := s.f.containers[id]
	if !ok {
		return o, errdefs.ErrNotFound
	}
	return o, nil
}

type fakeSandboxes struct{ sandbox.Store }

func (fakeSandboxes) Delete(context.Context, string) error { return nil }

func (fakeSandboxes) List(context.Context, ...string) ([]sandbox.Sandbox, error) { return nil, nil }

type fakeSnapshots struct{ snapshots.Snapshotter }

func (fakeSnapshots) Walk(context.Context, snapshots.WalkFunc, ...string) error { return nil }

func (fakeSnapshots) Mounts(context.Context, string) ([]mount.Mount, error) { return nil, nil }

type fakeTasks struct {
	tasks.TasksClient
	f *fake
}

func (s fakeTasks) Get(ctx context.Context, r *tasks.GetRequest, _ ...grpc.CallOption) (*tasks.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, containerdsOwnBound)
	defer cancel()
	p, err := s.f.shim(ctx, r.ContainerID)
	return &tasks.GetResponse{Process: p}, err
}

func (s fakeTasks) Create(_ context.Context, r *tasks.CreateTaskRequest, _ ...grpc.CallOption) (*tasks.CreateTaskResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.tasks[r.ContainerID] != nil {
		return nil, errdefs.ErrAlreadyExists
	}
	s.f.pid++
	s.f.tasks[r.ContainerID] = &task.Process{ID: r.ContainerID, Pid: s.f.pid, Status: task.Status_CREATED}
	return &tasks.CreateTaskResponse{ContainerID: r.ContainerID, Pid: s.f.pid}, nil
}

func (s fakeTasks) Kill(_ context.Context, r *tasks.KillRequest, _ ...grpc.CallOption) (*emptypb.Empty, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.tasks[r.ContainerID].Status = task.Status_STOPPED
	return &emptypb.Empty{}, nil
}

func (s fakeTasks) Wait(context.Context, *tasks.WaitRequest, ...grpc.CallOption) (*tasks.WaitResponse, error) {
	return &tasks.WaitResponse{}, nil
}

func (s fakeTasks) Delete(_ context.Context, r *tasks.DeleteTaskRequest, _ ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	switch p := s.f.tasks[r.ContainerID]; {
	case p == nil:
		return nil, errdefs.ErrNotFound
	case p.Status != task.Status_STOPPED:
		return nil, errdefs.ErrFailedPrecondition
	}
	delete(s.f.tasks, r.ContainerID)
	return &tasks.DeleteResponse{}, nil
}

// List asks each shim in turn, as containerd does.
func (s fakeTasks) List(ctx context.Context, _ *tasks.ListTasksRequest, _ ...grpc.CallOption) (*tasks.ListTasksResponse, error) {
	s.f.mu.Lock()
	var ids []string
	for id := range s.f.tasks {
		ids = append(ids, id)
	}
	s.f.mu.Unlock()
	resp := &tasks.ListTasksResponse{}
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(ctx, containerdsOwnBound)
		if p, err := s.f.shim(ctx, id); err == nil {
			resp.Tasks = append(resp.Tasks, p)
		}
		cancel()
	}
	return resp, ctx.Err()
}
