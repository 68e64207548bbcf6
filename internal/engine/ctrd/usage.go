// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
)

// TaskUsage asks the shim of a task for what its container uses. A shim that does not know its
// container's cgroup answers in the form of either version.
func (c *Containerd) TaskUsage(ctx context.Context, id string) (pod.TaskUsage, error) {
	resp, err := askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*tasks.MetricsResponse, error) {
		return c.client.TaskService().Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==" + id}})
	})
	if err != nil {
		return pod.TaskUsage{}, fmt.Errorf("ask for the usage of task %s: %w", id, connection.Native(err))
	}
	for _, m := range resp.GetMetrics() {
		if m.GetID() != id {
			continue
		}
		data, err := typeurl.UnmarshalAny(m.GetData())
		if err != nil {
			return pod.TaskUsage{}, fmt.Errorf("read the usage of task %s: %w", id, err)
		}
		return usageOf(id, data)
	}
	return pod.TaskUsage{}, fmt.Errorf("ask for the usage of task %s: its shim says nothing: %w", id, errdefs.ErrNotFound)
}

// usageOf reads the answer of a shim.
func usageOf(id string, data any) (pod.TaskUsage, error) {
	switch m := data.(type) {
	case *cgroup1.Metrics:
		return pod.TaskUsage{
			CPU:          m.GetCPU().GetUsage().GetTotal(),
			Memory:       m.GetMemory().GetUsage().GetUsage(),
			MemoryLimit:  m.GetMemory().GetUsage().GetLimit(),
			InactiveFile: m.GetMemory().GetTotalInactiveFile(),
			Anon:         m.GetMemory().GetTotalRSS(),
		}, nil
	case *cgroup2.Metrics:
		return pod.TaskUsage{
			CPU:          m.GetCPU().GetUsageUsec() * 1000,
			Memory:       m.GetMemory().GetUsage(),
			MemoryLimit:  m.GetMemory().GetUsageLimit(),
			InactiveFile: m.GetMemory().GetInactiveFile(),
			Anon:         m.GetMemory().GetAnon(),
		}, nil
	}
	return pod.TaskUsage{}, fmt.Errorf("read the usage of task %s: its shim answers with a %T: %w", id, data, errdefs.ErrNotImplemented)
}
