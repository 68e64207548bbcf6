// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// updated notes what is asked for.
type updated struct {
	Pods
	Health
	calls []string
}

func (u *updated) UpdateContainerResources(_ context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	u.calls = append(u.calls, fmt.Sprint(id, " ", r.GetCpuQuota()))
	return nil
}

func (u *updated) UpdatePodSandboxResources(_ context.Context, id string, overhead, r *runtimeapi.LinuxContainerResources) error {
	u.calls = append(u.calls, fmt.Sprint(id, " ", overhead.GetCpuQuota(), " ", r.GetCpuQuota()))
	return nil
}

func (u *updated) SetPodCIDR(cidrs string) { u.calls = append(u.calls, cidrs) }

func TestUpdates(t *testing.T) {
	u := &updated{}
	c := dialServer(t, &Runtime{Pods: u, Health: u}, slog.New(slog.DiscardHandler), &observed{})
	quota := func(v int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuQuota: v}
	}
	container := func(r *runtimeapi.UpdateContainerResourcesRequest) error {
		r.ContainerId = "c1"
		_, err := c.UpdateContainerResources(t.Context(), r)
		return err
	}
	cidr := func(s string) error {
		_, err := c.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: s}},
		})
		return err
	}
	for name, err := range map[string]error{
		"windows":           container(&runtimeapi.UpdateContainerResourcesRequest{Linux: quota(1), Windows: &runtimeapi.WindowsContainerResources{}}),
		"linux":             container(&runtimeapi.UpdateContainerResourcesRequest{}),
		"pod_cidr \"10.1\"": cidr("10.1"),
		"two":               cidr("10.1.0.0/16,10.2.0.0/16,10.3.0.0/16"),
	} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(u.calls) != 0 {
		t.Errorf("%q", u.calls)
	}
	_, podErr := c.UpdatePodSandboxResources(t.Context(), &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "p1", Overhead: quota(3), Resources: quota(4)})
	for _, err := range []error{container(&runtimeapi.UpdateContainerResourcesRequest{Linux: quota(2)}), podErr, cidr(""), cidr("10.1.0.0/16,fd00::/64")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got, want := strings.Join(u.calls, "; "), "p1 3 4; c1 2; 10.1.0.0/16,fd00::/64"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
