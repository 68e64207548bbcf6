// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func updateRows() []Row {
	const podResources = "recorded, and shown with verbose; the pod's cgroup is the kubelet's"
	return []Row{
		honoured("UpdateContainerResourcesRequest.container_id", ""),
		honoured("UpdateContainerResourcesRequest.linux", "what is not set stays as it is; oom_score_adj and hugepage_limits only before the start",
			"spec.TestResourcesThatCannotBeAreRefused"),
		below(refused("UpdateContainerResourcesRequest.windows", codes.InvalidArgument, "this is Linux", &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: "runs",
			Windows:     &runtimeapi.WindowsContainerResources{},
		})),
		noEffect("UpdateContainerResourcesRequest.annotations", "they are for keys that a runtime defines, and berth defines none"),

		honoured("UpdatePodSandboxResourcesRequest.pod_sandbox_id", ""),
		below(honoured("UpdatePodSandboxResourcesRequest.overhead", podResources)),
		below(honoured("UpdatePodSandboxResourcesRequest.resources", podResources)),

		honoured("UpdateRuntimeConfigRequest.runtime_config", ""),
		honoured("RuntimeConfig.network_config", ""),
		honoured("NetworkConfig.pod_cidr", "shown by the verbose Status; the addresses of pods come from the CNI configuration, which berth does not write"),

		honoured("CheckpointContainerRequest.container_id", ""),
		honoured("CheckpointContainerRequest.location", "a new file; something that is there is AlreadyExists"),
		honoured("CheckpointContainerRequest.timeout", "0 is a minute, and a negative one is refused"),
	}
}
