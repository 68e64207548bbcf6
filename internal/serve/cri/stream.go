// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/serve/stream"
)

// Streams runs commands in containers for the runtime service.
type Streams interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stream.Result, error)
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// ExecSync runs a command in a container and returns its output and its exit code.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	timeout := time.Duration(min(req.GetTimeout(), math.MaxInt64/int64(time.Second))) * time.Second
	res, err := r.Streams.ExecSync(ctx, req.GetContainerId(), req.GetCmd(), timeout)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: res.Code}, nil
}

// Exec answers with the URL at which a client runs a command in a container.
func (r *Runtime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return r.Streams.Exec(ctx, req)
}

// Attach answers with the URL at which a client is connected with a container's own process.
func (r *Runtime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return r.Streams.Attach(ctx, req)
}

// PortForward answers with the URL at which a client is connected with ports of a pod.
func (r *Runtime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return r.Streams.PortForward(ctx, req)
}
