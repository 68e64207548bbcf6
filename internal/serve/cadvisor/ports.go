// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// Pods lists sandboxes and containers. Its methods answer from memory.
type Pods interface {
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
	Target(id string) (pod.Target, error)
}

// Runtime asks shims. An answer takes a bounded time.
type Runtime interface {
	// NetworkThread returns the ID of a thread of a sandbox's shim that is in the network namespace
	// of a pod without a process; ErrNotFound when there is none.
	NetworkThread(ctx context.Context, id string) (uint32, error)
	// TaskState is for containers whose process is not in the records: a virtual machine.
	TaskState(ctx context.Context, id string) (pod.TaskState, error)
}
