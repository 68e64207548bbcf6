// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Checkpoints writes the state of a container that runs into an archive.
type Checkpoints interface {
	Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error
}

// CheckpointContainer writes a checkpoint of a container into a new file. The container goes on.
func (r *Runtime) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	switch {
	case req.GetLocation() == "":
		return nil, invalid("checkpoint container %s: location is empty", req.GetContainerId())
	case req.GetTimeout() < 0:
		return nil, invalid("checkpoint container %s: timeout %d is negative", req.GetContainerId(), req.GetTimeout())
	}
	timeout := time.Duration(min(req.GetTimeout(), math.MaxInt64/int64(time.Second))) * time.Second
	if err := r.Checkpoints.Checkpoint(ctx, req.GetContainerId(), req.GetLocation(), timeout); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointContainerResponse{}, nil
}
