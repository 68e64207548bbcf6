// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-runc-v2 is containerd's shim for runc, with a sandbox API: the sandbox of
// a pod is the shim itself, without a process. It serves the pod's containers from the pod's start
// to its end, and does not end with the last of them. As long as nobody makes a sandbox in it, it
// is the shim that containerd brings along.
//
// The namespaces of such a pod are not the shim's business: whoever makes the sandbox names them in
// the specifications of the containers. One thread of the shim waits in the network namespace,
// where there is one, for those who take the network's figures of a pod from /proc/PID/net/dev of a
// process in it: the cAdvisor in the kubelet does.
//
// With the pins of package pins it is a trick: it relies on containerd's shim being a library, and on
// its sandbox controller, which starts whatever shim has a sandbox API. berth's setting pod.pause
// turns it off with always. Delete when containerd's shim for runc has a sandbox API that pins the
// namespaces: https://github.com/containerd/containerd/issues/14106.
package main

import (
	"context"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// capability is the annotation by which the shim says, to whoever asks for its information, that it
// can be a sandbox without a process.
const capability = "io.berth.shim.sandbox"

// networkThread is the key under which the status of a sandbox has the ID of the thread that is in
// the sandbox's network namespace.
const networkThread = "io.berth.shim.network-thread"

func main() {
	shim.RunShim(context.Background(), informed{manager.NewShimManager("io.containerd.runc.v2")})
}

// informed is the manager of the shim, which says what this shim can besides.
type informed struct{ shim.Shim }

// Info describes the shim.
func (i informed) Info(ctx context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	info, err := i.Shim.Info(ctx, options)
	if err != nil {
		return nil, err
	}
	if info.Annotations == nil {
		info.Annotations = map[string]string{}
	}
	info.Annotations[capability] = "true"
	return info, nil
}

func init() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "sandbox", Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ss, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return &sandbox{down: ss.(shutdown.Service)}, nil
		},
	})
}

// sandbox is the one sandbox of a shim. It runs from its creation until it is shut down.
type sandbox struct {
	down   shutdown.Service
	made   atomic.Bool
	began  atomic.Int64 // when it was made, in nanoseconds since the epoch
	thread atomic.Int64 // the ID of the thread in the pod's network namespace; 0 for none
}

// RegisterTTRPC registers the sandbox service with the shim's server.
func (s *sandbox) RegisterTTRPC(server *ttrpc.Server) error {
	sandboxapi.RegisterTTRPCSandboxService(server, s)
	return nil
}

// UnaryServerInterceptor keeps the shim from ending with its last container once there is a
// sandbox. Containerd asks for that whenever it has deleted a task. It also keeps a start from being
// cut off: see lasting.
func (s *sandbox) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		if s.made.Load() && strings.HasSuffix(info.FullMethod, ".Task/Shutdown") {
			return &emptypb.Empty{}, nil
		}
		if strings.HasSuffix(info.FullMethod, ".Task/Start") {
			var cancel context.CancelFunc
			ctx, cancel = lasting(ctx)
			defer cancel()
		}
		return method(ctx, unmarshal)
	}
}

// lasting is a context with the deadline of a call, which does not end when the caller hangs up. The
// end of the caller would kill runc while it starts the program: the shim would go on to say that the
// task was not started, whether the program runs or not, and whoever starts the task anew would run
// the program twice. While a start goes on, the shim does not answer for its task.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	detached := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(detached, deadline)
	}
	return context.WithCancel(detached)
}

func (s *sandbox) createdAt() *timestamppb.Timestamp {
	return timestamppb.New(time.Unix(0, s.began.Load()))
}

// CreateSandbox makes the shim a sandbox. The sandbox does without a thread in its network
// namespace if there cannot be one.
func (s *sandbox) CreateSandbox(ctx context.Context, r *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	if path := r.GetNetnsPath(); path != "" && s.thread.Load() == 0 {
		thread, err := stay(path)
		if err != nil {
			log.G(ctx).WithError(err).Warn("there are no figures of the pod's network for cAdvisor")
		}
		s.thread.Store(int64(thread))
	}
	s.began.Store(time.Now().UnixNano())
	s.made.Store(true)
	return &sandboxapi.CreateSandboxResponse{}, nil
}

// StartSandbox says which process the shim is.
func (s *sandbox) StartSandbox(context.Context, *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	return &sandboxapi.StartSandboxResponse{Pid: uint32(os.Getpid()), CreatedAt: s.createdAt()}, nil //nolint:gosec // a pid
}

// Platform is that of the shim.
func (s *sandbox) Platform(context.Context, *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

// StopSandbox has nothing to stop: the containers are stopped one by one.
func (s *sandbox) StopSandbox(context.Context, *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	return &sandboxapi.StopSandboxResponse{}, nil
}

// WaitSandbox returns when the shim ends.
func (s *sandbox) WaitSandbox(ctx context.Context, _ *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	select {
	case <-s.down.Done():
		return &sandboxapi.WaitSandboxResponse{ExitedAt: timestamppb.Now()}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// SandboxStatus says that the sandbox is there, and which thread is in its network namespace.
func (s *sandbox) SandboxStatus(_ context.Context, r *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	info := map[string]string{}
	if thread := s.thread.Load(); thread != 0 {
		info[networkThread] = strconv.FormatInt(thread, 10)
	}
	return &sandboxapi.SandboxStatusResponse{
		Info:      info,
		SandboxID: r.GetSandboxID(),
		Pid:       uint32(os.Getpid()), //nolint:gosec // a pid
		State:     "SANDBOX_READY",
		CreatedAt: s.createdAt(),
	}, nil
}

// PingSandbox answers.
func (s *sandbox) PingSandbox(context.Context, *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	return &sandboxapi.PingResponse{}, nil
}

// ShutdownSandbox ends the shim.
func (s *sandbox) ShutdownSandbox(context.Context, *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	s.down.Shutdown()
	return &sandboxapi.ShutdownSandboxResponse{}, nil
}

// SandboxMetrics has nothing to count: there is no process.
func (s *sandbox) SandboxMetrics(context.Context, *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	return &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{Timestamp: timestamppb.Now()}}, nil
}

// UpdateSandbox changes nothing.
func (s *sandbox) UpdateSandbox(context.Context, *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	return &sandboxapi.UpdateSandboxResponse{}, nil
}
