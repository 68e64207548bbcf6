// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// networkThread is the key under which the status of a sandbox has the ID of the thread that is in
// the sandbox's network namespace.
const networkThread = "io.berth.shim.network-thread"

func init() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "sandbox", Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ss, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			s := &sandboxes{
				down:    ss.(shutdown.Service),
				sockets: inheritedSockets(),
				of:      map[string]*sandbox{},
				tasks:   map[string]bool{},
			}
			s.down.RegisterCallback(func(context.Context) error { s.removeSockets(); return nil })
			return s, nil
		},
	})
}

// The descriptors of the sockets that a shim serves, opened by its starter: the socket of its
// services, and one for debugging.
const firstInherited, lastInherited = 3, 4

// socket is a socket of a file system's. The same path may have another one later.
type socket struct {
	path string
	file os.FileInfo
}

// inheritedSockets are the sockets that the shim serves. They are looked at when it starts, since
// their descriptors are closed later.
func inheritedSockets() (found []socket) {
	for fd := firstInherited; fd <= lastInherited; fd++ {
		sa, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		un, ok := sa.(*unix.SockaddrUnix)
		if !ok || !strings.HasPrefix(un.Name, "/") {
			continue
		}
		if info, err := os.Lstat(un.Name); err == nil {
			found = append(found, socket{un.Name, info})
		}
	}
	return found
}

// removeSockets removes the sockets of the shim. Containerd's shim removes them, too, but looks for
// them by its working directory, which is gone with the pod that it was started for, and by its ID.
// A socket of another shim stays, which may have the path by now.
func (s *sandboxes) removeSockets() {
	for _, so := range s.sockets {
		if now, err := os.Lstat(so.path); err == nil && os.SameFile(now, so.file) {
			_ = os.Remove(so.path)
		}
	}
}

// sandboxes are the sandboxes of a shim, by ID. Each runs from its creation until it is shut down.
// The shim ends with the last of them, or, where tasks are left without a sandbox, with the last
// task as containerd's shim does.
type sandboxes struct {
	down    shutdown.Service
	sockets []socket
	starter starter

	mu     sync.Mutex
	of     map[string]*sandbox
	tasks  map[string]bool // that were made and not deleted
	ending bool            // the last sandbox was shut down: there will be no other
}

// sandbox is one sandbox of a shim. It is not changed once it is among the sandboxes.
type sandbox struct {
	began time.Time
	stay  *stay         // the thread in the pod's network namespace; nil for none
	ended chan struct{} // closed when the sandbox is shut down
}

// RegisterTTRPC registers the sandbox service with the shim's server. By then every plug-in exists:
// the one for tasks has set the function that starts the OCI runtime.
func (s *sandboxes) RegisterTTRPC(server *ttrpc.Server) error {
	// The OCI runtime does nothing for which more than one thread of Go would gain anything: it is
	// done sooner without the others. This process has read its own number already.
	_ = os.Setenv("GOMAXPROCS", "1")
	giveBack()
	s.starter.ProcessMonitor = nulls{runc.Monitor}
	runc.Monitor = &s.starter
	sandboxapi.RegisterTTRPCSandboxService(server, s)
	return nil
}

// UnaryServerInterceptor keeps the shim from ending with its last container while there is a
// sandbox. Containerd asks for that whenever it has deleted a task. It also keeps a start from
// being cut off: see lasting. And it notes which tasks there are, and which are being started.
func (s *sandboxes) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		_, name, _ := strings.Cut(info.FullMethod, ".Task/")
		switch name {
		case "Shutdown":
			if s.any() {
				return &emptypb.Empty{}, nil
			}
		case "Start":
			var cancel context.CancelFunc
			ctx, cancel = lasting(ctx)
			defer cancel()
			over := func() {}
			defer func() { over() }()
			return method(ctx, func(into any) error {
				err := unmarshal(into)
				if r, ok := into.(interface {
					GetID() string
					GetExecID() string
				}); ok && err == nil && r.GetExecID() == "" {
					over = s.starter.begin(ctx, r.GetID())
				}
				return err
			})
		case "Create", "Delete":
			var asked any
			answer, err := method(ctx, func(into any) error {
				asked = into
				return unmarshal(into)
			})
			if err == nil {
				s.note(asked)
			}
			return answer, err
		}
		return method(ctx, unmarshal)
	}
}

func (s *sandboxes) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of) > 0
}

// note notes that a task was made or deleted, by the request that has succeeded.
func (s *sandboxes) note(request any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r := request.(type) {
	case *taskapi.CreateTaskRequest:
		s.tasks[r.GetID()] = true
	case *taskapi3.CreateTaskRequest:
		s.tasks[r.GetID()] = true
	case *taskapi.DeleteRequest:
		if r.GetExecID() == "" {
			delete(s.tasks, r.GetID())
		}
	case *taskapi3.DeleteRequest:
		if r.GetExecID() == "" {
			delete(s.tasks, r.GetID())
		}
	}
}

// lasting is a context with the deadline of a call, which does not end when the caller hangs up.
// The end of the caller would kill runc while it starts the program: the shim would report that the
// task was not started, whether the program runs or not, and another start of the task would run
// the program twice. While a start goes on, the shim does not answer for its task.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	detached := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(detached, deadline)
	}
	return context.WithCancel(detached)
}

// find returns a sandbox; nil if there is none of that ID, as for a pod whose earlier shim has
// died.
func (s *sandboxes) find(id string) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[id]
}

// createdAt is when a sandbox was made; nil for none.
func (sb *sandbox) createdAt() *timestamppb.Timestamp {
	if sb == nil {
		return nil
	}
	return timestamppb.New(sb.began)
}

// CreateSandbox makes a sandbox. It does without a thread in its network namespace if there cannot
// be one. It returns ErrUnavailable if the shim is about to end; the caller has to start another
// one.
func (s *sandboxes) CreateSandbox(ctx context.Context, r *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	id := r.GetSandboxID()
	s.starter.trust(r.GetBundlePath())
	sb := &sandbox{began: time.Now(), ended: make(chan struct{})}
	if path := r.GetNetnsPath(); path != "" && s.find(id) == nil {
		var err error
		if sb.stay, err = stayIn(path); err != nil {
			log.G(ctx).WithError(err).WithField("id", id).Warn("there are no figures of the pod's network for cAdvisor")
		}
	}
	if !s.add(id, sb) {
		sb.stay.end()
		return nil, errgrpc.ToGRPC(fmt.Errorf("make sandbox %s: the shim is about to end: %w", id, errdefs.ErrUnavailable))
	}
	return &sandboxapi.CreateSandboxResponse{}, nil
}

// add adds a sandbox, unless it is there. It reports false when the shim is about to end.
func (s *sandboxes) add(id string, sb *sandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	if s.of[id] == nil {
		s.of[id] = sb
	} else {
		sb.stay.end()
	}
	return true
}

// StartSandbox returns the PID of the shim.
func (s *sandboxes) StartSandbox(_ context.Context, r *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	return &sandboxapi.StartSandboxResponse{
		Pid:       uint32(os.Getpid()),
		CreatedAt: s.find(r.GetSandboxID()).createdAt(),
	}, nil
}

// Platform returns the platform of the shim.
func (s *sandboxes) Platform(context.Context, *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

// StopSandbox has nothing to stop: the containers are stopped one by one.
func (s *sandboxes) StopSandbox(context.Context, *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	return &sandboxapi.StopSandboxResponse{}, nil
}

// WaitSandbox returns when the sandbox is shut down, or the shim ends.
func (s *sandboxes) WaitSandbox(ctx context.Context, r *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	var ended chan struct{} // the end of an absent one is not known
	if sb := s.find(r.GetSandboxID()); sb != nil {
		ended = sb.ended
	}
	select {
	case <-ended:
	case <-s.down.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &sandboxapi.WaitSandboxResponse{ExitedAt: timestamppb.Now()}, nil
}

// SandboxStatus reports that the sandbox exists, and the thread in its network namespace.
func (s *sandboxes) SandboxStatus(_ context.Context, r *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	sb := s.find(r.GetSandboxID())
	info := map[string]string{}
	if sb != nil && sb.stay != nil {
		info[networkThread] = strconv.Itoa(sb.stay.thread)
	}
	return &sandboxapi.SandboxStatusResponse{
		Info:      info,
		SandboxID: r.GetSandboxID(),
		Pid:       uint32(os.Getpid()),
		State:     "SANDBOX_READY",
		CreatedAt: sb.createdAt(),
	}, nil
}

// PingSandbox answers.
func (s *sandboxes) PingSandbox(context.Context, *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	return &sandboxapi.PingResponse{}, nil
}

// ShutdownSandbox ends the sandbox, and the shim with the last one, unless there are tasks of a pod
// that is not among the sandboxes: the last of those ends it then. One that is not there, and is
// asked for again, is a success.
func (s *sandboxes) ShutdownSandbox(_ context.Context, r *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	if s.remove(r.GetSandboxID()) {
		s.removeSockets() // before the answer: a caller that comes then starts another shim
		s.down.Shutdown()
	}
	return &sandboxapi.ShutdownSandboxResponse{}, nil
}

// remove removes a sandbox, and reports whether the shim is to end.
func (s *sandboxes) remove(id string) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.of[id]; sb != nil {
		delete(s.of, id)
		close(sb.ended)
		sb.stay.end()
	}
	if len(s.of) == 0 && (len(s.tasks) == 0 || s.ending) {
		s.ending = true
	}
	return s.ending
}

// SandboxMetrics has nothing to count: there is no process.
func (s *sandboxes) SandboxMetrics(context.Context, *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	return &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{Timestamp: timestamppb.Now()}}, nil
}

// UpdateSandbox changes nothing.
func (s *sandboxes) UpdateSandbox(context.Context, *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	return &sandboxapi.UpdateSandboxResponse{}, nil
}
