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
		honoured("UpdateContainerResourcesRequest.linux", "unset fields do not change; oom_score_adj and hugepage_limits only before the start",
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
		noEffect("NetworkConfig.pod_cidr", "the addresses of pods come from the CNI configuration, which berth does not write; it is checked, shown by the verbose Status, and noted in the log"),

		honoured("CheckpointContainerRequest.container_id", ""),
		honoured("CheckpointContainerRequest.location", "a new file; something that is there is AlreadyExists"),
		honoured("CheckpointContainerRequest.timeout", "0 is a minute, and a negative one is refused"),

		honoured("CheckpointPodRequest.pod_sandbox_id", "", "checkpoint.TestPodCheckpointsThatCannotBe"),
		honoured("CheckpointPodRequest.output_path", "an empty directory; it is as it was when the call fails", "checkpoint.TestACheckpointOfAPod"),
		honoured("CheckpointPodRequest.container_ids", "containers of the pod that run, each once", "checkpoint.TestPodCheckpointsThatCannotBe"),
		refused("CheckpointPodRequest.options", codes.InvalidArgument, "berth has none", &runtimeapi.CheckpointPodRequest{
			PodSandboxId: "pod",
			OutputPath:   "/",
			ContainerIds: []string{"runs"},
			Options:      map[string]string{"k": "v"},
		}),
		honoured("RestorePodRequest.checkpoint_path", "a directory that CheckpointPod has filled", "checkpoint.TestADirectoryThatIsNotACheckpointIsRefused"),
		below(honoured("RestorePodRequest.config", "as in RunPodSandbox; other namespaces than in the checkpoint are InvalidArgument",
			"checkpoint.TestAPodIsRestoredAsItWas")),
		honoured("RestorePodRequest.runtime_handler", "one of runc's; a handler that is not configured is InvalidArgument"),
		refused("RestorePodRequest.options", codes.InvalidArgument, "berth has none", &runtimeapi.RestorePodRequest{
			CheckpointPath: "/",
			Config:         run(func(*runtimeapi.PodSandboxConfig) {}).GetConfig(),
			Options:        map[string]string{"k": "v"},
		}),
		below(honoured("RestorePodRequest.container_configs",
			"as in CreateContainer, one for each that the checkpoint has, by metadata.name. The description of its process (image, command, args, working_dir, envs, "+
				"tty and linux.security_context) must be as it was", "checkpoint.TestAPodIsRestoredAsItWas")),
	}
}
