// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A shim with a sandbox API, which containerd's for runc lacks: the sandbox is a pause process in
// the pod's network namespace, and a child of the shim's. The containers are runc's, in the same
// shim.
func init() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "sandbox", Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ss, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return &sandboxes{down: ss.(shutdown.Service), ended: make(chan struct{}), pods: map[string]bool{}}, nil
		},
	})
}

// sandboxed is set if this shim has a sandbox.
var sandboxed atomic.Bool

// sandboxes serves the one sandbox of a shim, or the pods of a group, which have no process.
type sandboxes struct {
	down  shutdown.Service
	ended chan struct{}

	mu    sync.Mutex
	id    string
	netns string
	// the kind of pod was not given: the shim itself is the sandbox, as with tools/programs/shim
	pinned   bool
	pods     map[string]bool // that are pinned
	pid      int
	began    time.Time
	status   int
	finished time.Time
}

// RegisterTTRPC registers the sandbox service with the shim's server.
func (s *sandboxes) RegisterTTRPC(server *ttrpc.Server) error {
	sandboxapi.RegisterTTRPCSandboxService(server, s)
	return nil
}

func (s *sandboxes) CreateSandbox(_ context.Context, r *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	return &sandboxapi.CreateSandboxResponse{}, step("CreateSandbox", r.GetSandboxID(), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.id, s.netns, s.pinned = r.GetSandboxID(), r.GetNetnsPath(), r.GetOptions() == nil
		if s.pinned {
			s.pods[s.id] = true
		}
		sandboxed.Store(true)
		return nil
	})
}

func (s *sandboxes) StartSandbox(_ context.Context, r *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	err := step("StartSandbox", r.GetSandboxID(), s.start)
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sandboxapi.StartSandboxResponse{Pid: uint32(s.pid), CreatedAt: timestamppb.New(s.began)}, err
}

func (s *sandboxes) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pinned {
		s.pid, s.began = os.Getpid(), time.Now()
		return nil
	}
	args := []string{filepath.Join(base(), "libexec", "pause")}
	if s.netns != "" {
		// it executes: the pid stays
		args = append([]string{"nsenter", "--net=" + s.netns, "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	exits, err := reaper.Default.Start(cmd)
	if err != nil {
		return fmt.Errorf("start pause: %w", err)
	}
	s.pid, s.began = cmd.Process.Pid, time.Now()
	go func() {
		code, _ := reaper.Default.Wait(cmd, exits)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status, s.finished = code, time.Now()
		close(s.ended)
	}()
	return nil
}

func (s *sandboxes) Platform(context.Context, *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: "linux", Architecture: "amd64"}}, nil
}

func (s *sandboxes) StopSandbox(_ context.Context, r *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	return &sandboxapi.StopSandboxResponse{}, step("StopSandbox", r.GetSandboxID(), func() error { s.kill(); return nil })
}

// kill ends the process, if there is one, and waits for it.
func (s *sandboxes) kill() {
	s.mu.Lock()
	pid, pinned := s.pid, s.pinned
	s.mu.Unlock()
	if pid != 0 && !pinned {
		_ = unix.Kill(pid, unix.SIGKILL)
		<-s.ended
	}
}

func (s *sandboxes) WaitSandbox(ctx context.Context, _ *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	select {
	case <-s.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sandboxapi.WaitSandboxResponse{ExitStatus: uint32(s.status), ExitedAt: timestamppb.New(s.finished)}, nil
}

func (s *sandboxes) SandboxStatus(context.Context, *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid == 0 {
		return nil, errgrpc.ToGRPC(fmt.Errorf("sandbox is not started: %w", errdefs.ErrNotFound))
	}
	r := &sandboxapi.SandboxStatusResponse{SandboxID: s.id, Pid: uint32(s.pid), State: "SANDBOX_READY", CreatedAt: timestamppb.New(s.began)}
	if !s.finished.IsZero() {
		r.State, r.ExitedAt = "SANDBOX_NOTREADY", timestamppb.New(s.finished)
	}
	return r, nil
}

func (s *sandboxes) PingSandbox(context.Context, *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	return &sandboxapi.PingResponse{}, nil
}

func (s *sandboxes) ShutdownSandbox(_ context.Context, r *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	return &sandboxapi.ShutdownSandboxResponse{}, step("ShutdownSandbox", r.GetSandboxID(), func() error {
		s.kill()
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.pods, r.GetSandboxID()); len(s.pods) == 0 {
			s.down.Shutdown()
		}
		return nil
	})
}

func (s *sandboxes) SandboxMetrics(context.Context, *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	return &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{Timestamp: timestamppb.Now()}}, nil
}

func (s *sandboxes) UpdateSandbox(context.Context, *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	return &sandboxapi.UpdateSandboxResponse{}, nil
}
