// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
)

// resourcesURL is the type under which shims expect cgroup settings.
const resourcesURL = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

// UpdateTask changes the cgroup settings of a task that runs: those that r sets.
func (c *Containerd) UpdateTask(ctx context.Context, id string, r *specs.LinuxResources) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode resources of %s: %w", id, err)
	}
	_, err = askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Update(ctx, &tasks.UpdateTaskRequest{
			ContainerID: id,
			Resources:   &anypb.Any{TypeUrl: resourcesURL, Value: b},
		})
	})
	if err != nil {
		return fmt.Errorf("update task %s: %w", id, refusal(connection.Native(err)))
	}
	return nil
}
