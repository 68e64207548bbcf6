// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// Pods lists sandboxes and containers. Its methods answer from memory.
type Pods interface {
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
	ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	Target(id string) (pod.Target, error)
}

// Shims asks the shims of containers whose processes are not on this host. A call may take long. It
// ends when ctx ends.
type Shims interface {
	TaskUsage(ctx context.Context, id string) (pod.TaskUsage, error)
}

// Layers measures writable layers. A measurement may take long. It should end when ctx ends.
type Layers interface {
	SnapshotUsage(ctx context.Context, snapshotter, key string) (bytes, inodes uint64, err error)
}
