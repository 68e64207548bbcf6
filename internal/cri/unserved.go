// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unserved are the RPCs that berth refuses, and why. Every other RPC of CRI is served: Runtime and
// Image do not embed the generated answers to what is not implemented, so that a new RPC in cri-api
// does not compile until somebody has decided about it.
var unserved = map[string]string{
	"CheckpointPod": "berth does not pause and checkpoint all containers of a pod as one; checkpoint them one by one",
	"RestorePod":    "berth does not restore pods from a checkpoint; run a new pod",
}

func refuse(rpc string) error {
	return fmt.Errorf("%s: %s: %w", rpc, unserved[rpc], errdefs.ErrNotImplemented)
}

// CheckpointPod is refused.
func (r *Runtime) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, refuse("CheckpointPod")
}

// RestorePod is refused.
func (r *Runtime) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, refuse("RestorePod")
}
