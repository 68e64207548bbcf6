// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Updates changes the resources of sandboxes and containers.
type Updates interface {
	UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error
	UpdatePodSandboxResources(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error
}

// UpdateContainerResources changes the resources of a container. The annotations of the request
// have no effect: they are for keys that a runtime defines, and berth defines none.
func (r *Runtime) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	id := req.GetContainerId()
	switch {
	case req.GetWindows() != nil:
		return nil, invalid("update container %s: windows is set, and this is Linux", id)
	case req.GetLinux() == nil:
		return nil, invalid("update container %s: linux is missing, there is nothing to change", id)
	}
	if err := r.Pods.UpdateContainerResources(ctx, id, req.GetLinux()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// UpdatePodSandboxResources records the resources of a pod. The kubelet sends it after it has
// changed the cgroup of the pod, which is the kubelet's own, so berth has nothing to change.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := r.Pods.UpdatePodSandboxResources(ctx, req.GetPodSandboxId(), req.GetOverhead(), req.GetResources()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// UpdateRuntimeConfig takes the node's pod CIDR from the kubelet, or several of them separated by
// commas. It is shown by the verbose Status and has no other effect: the addresses of
// pods come from the node's CNI configuration, which berth does not write.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	cidrs := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if cidrs == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	list := strings.Split(cidrs, ",")
	for _, c := range list {
		if _, err := netip.ParsePrefix(strings.TrimSpace(c)); err != nil || len(list) > 2 {
			return nil, invalid("update runtime config: pod_cidr %q is not one CIDR, or two for two IP families", cidrs)
		}
	}
	r.Health.SetPodCIDR(cidrs)
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
