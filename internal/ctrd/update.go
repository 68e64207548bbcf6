// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/connection"
)

// resourcesURL is the type under which shims expect cgroup settings.
const resourcesURL = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

// UpdateTask changes the cgroup settings of a task that runs: those that r sets.
func (c *Containerd) UpdateTask(ctx context.Context, id string, r *specs.LinuxResources) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode resources of %s: %w", id, err)
	}
	_, err = askShim(connection.Namespaced(ctx), c, id, func(ctx context.Context) (*emptypb.Empty, error) {
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

// refusal gives an answer of the OCI runtime, which has no code of its own, one that says whether
// the request or the state of the container is the reason. What is not an answer stays as it is.
func refusal(err error) error {
	switch {
	case errdefs.IsNotFound(err), errdefs.IsUnavailable(err), errdefs.IsFailedPrecondition(err), errdefs.IsInvalidArgument(err),
		errdefs.IsNotImplemented(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	text := err.Error()
	for _, cut := range []string{"ttrpc: closed", "signal: killed", "context canceled", "context deadline exceeded"} {
		if strings.Contains(text, cut) {
			return err
		}
	}
	kernel := strings.ToLower(text) // Go and libc write its errors differently
	if strings.Contains(kernel, "invalid argument") || strings.Contains(kernel, "numerical result out of range") {
		return fmt.Errorf("%s: %w", text, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: %w", text, errdefs.ErrFailedPrecondition)
}
