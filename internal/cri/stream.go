// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/stream"
)

// Streams is what the runtime service needs to run commands in containers.
type Streams interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stream.Result, error)
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
