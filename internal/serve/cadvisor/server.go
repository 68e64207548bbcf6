// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"runtime/debug"
	"sync"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/heart/pod"
	"berth/internal/host/spec"
)

// specType is how containerd calls an OCI specification, which it has as JSON.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// serve answers on the socket, if there is one, until ctx ends.
func (s *Service) serve(ctx context.Context) error {
	if s.lis == nil {
		<-ctx.Done()
		return nil
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.guard), grpc.UnknownServiceHandler(s.elsewhere))
	containersapi.RegisterContainersServer(server, containers{s: s})
	tasksapi.RegisterTasksServer(server, tasks{s: s})
	versionapi.RegisterVersionServer(server, version{s: s})
	defer context.AfterFunc(ctx, server.Stop)()
	if s.cfg.Keep != nil {
		watching, unwatch := context.WithCancel(ctx)
		var kept sync.WaitGroup
		defer kept.Wait()
		defer server.Stop() // even if the first listener broke
		defer unwatch()
		kept.Go(func() {
			// Keep makes another one
			s.cfg.Keep(watching, s.lis, func(lis net.Listener) { _ = server.Serve(lis) })
		})
	}
	if err := server.Serve(s.lis); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve cAdvisor at %s: %w", s.socket(), err)
	}
	return nil
}

// elsewhere answers clients of CRI, such as crictl without a configuration, whose first guess is
// the link.
func (s *Service) elsewhere(any, grpc.ServerStream) error {
	return status.Errorf(codes.Unimplemented, "this socket of berth is for the cAdvisor in the kubelet alone; CRI is served on unix://%s: "+
		"name that, for crictl as runtime-endpoint and image-endpoint in /etc/crictl.yaml", s.cfg.CRI)
}

// guard turns errors into gRPC errors, and a panic of one call into its error.
func (s *Service) guard(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("call of cAdvisor panicked", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%s panicked: %v: %w", info.FullMethod, p, errdefs.ErrInternal)
		}
		err = errgrpc.ToGRPC(err)
	}()
	return h(ctx, req)
}

// target describes a sandbox or a container that has not ended.
func (s *Service) target(id string) (pod.Target, error) {
	t, err := s.cfg.Pods().Target(id)
	if err != nil {
		return t, err
	}
	if t.ID != id {
		return t, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
	}
	select {
	case <-t.Ended:
		return t, fmt.Errorf("container %s has ended: %w", id, errdefs.ErrNotFound)
	default:
		return t, nil
	}
}

type containers struct {
	containersapi.UnimplementedContainersServer
	s *Service
}

// Get describes a container or a sandbox.
func (c containers) Get(_ context.Context, r *containersapi.GetContainerRequest) (*containersapi.GetContainerResponse, error) {
	t, err := c.s.target(r.GetID())
	if err != nil {
		return nil, err
	}
	labels := spec.ObjectLabels(t.PodConfig.GetLabels(), spec.KindSandbox)
	if t.Config != nil {
		labels = spec.ObjectLabels(t.Config.GetLabels(), spec.KindContainer)
	}
	empty, err := json.Marshal(specs.Spec{Version: specs.Version, Process: &specs.Process{}})
	if err != nil {
		return nil, fmt.Errorf("describe container %s: %w", t.ID, err)
	}
	return &containersapi.GetContainerResponse{Container: &containersapi.Container{
		ID:     t.ID,
		Labels: labels,
		Image:  t.Config.GetImage().GetImage(),
		Spec:   &anypb.Any{TypeUrl: specType, Value: empty},
	}}, nil
}

type tasks struct {
	tasksapi.UnimplementedTasksServer
	s *Service
}

// Get names the process of a container or a sandbox, or a thread in the network namespace of a
// sandbox that has none.
func (c tasks) Get(ctx context.Context, r *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	t, err := c.s.target(r.GetContainerID())
	if err != nil {
		return nil, err
	}
	pid, err := c.s.pid(ctx, t)
	if err != nil {
		return nil, err
	}
	st := tasktypes.Status_CREATED
	if t.Running {
		st = tasktypes.Status_RUNNING
	}
	return &tasksapi.GetResponse{Process: &tasktypes.Process{
		ID:     t.ID,
		Pid:    pid,
		Status: st,
	}}, nil
}

func (s *Service) pid(ctx context.Context, t pod.Target) (uint32, error) {
	switch {
	case t.Process.Pid != 0:
		return t.Process.Pid, nil
	case !t.Pinned:
		st, err := s.cfg.Runtime.TaskState(ctx, t.ID)
		return st.Pid, err
	}
	thread, err := s.thread(ctx, t)
	if err == nil {
		err = s.groups.answered(t.ID, thread) // before cAdvisor has it
	}
	return thread, err
}

type version struct {
	versionapi.UnimplementedVersionServer
	s *Service
}

// Version returns the version of berth.
func (v version) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: v.s.cfg.Version}, nil
}
