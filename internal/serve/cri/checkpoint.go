// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Checkpoints writes the state of containers that run into archives.
type Checkpoints interface {
	Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error
	CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) error
}

// Restorer makes pods from the directories that CheckpointPod writes.
type Restorer interface {
	RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error)
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

// CheckpointPod writes a checkpoint of containers of one pod, all of the same instant, into an
// empty directory. The containers go on.
func (r *Runtime) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	if err := r.Checkpoints.CheckpointPod(ctx, req); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointPodResponse{}, nil
}

// RestorePod makes a pod from a checkpoint. Its containers are CREATED, and their start restores
// their processes.
func (r *Runtime) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	if err := checkSandbox("restore pod", req.GetConfig()); err != nil {
		return nil, err
	}
	for i, c := range req.GetContainerConfigs() {
		if err := checkContainer(fmt.Sprintf("restore pod: container_configs[%d]", i), c); err != nil {
			return nil, err
		}
	}
	return r.Restorer.RestorePod(ctx, req)
}
