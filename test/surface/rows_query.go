// SPDX-License-Identifier: Apache-2.0

package surface

func queryRows() []Row {
	const (
		idempotent = "pod.TestStopAndRemoveAreIdempotentAndDefined"
		lists      = "test/surface.TestListsSelect"
		stats      = "stats.TestListsAreFiltered"
	)
	return []Row{
		noEffect("VersionRequest.version", "berth serves one version of CRI, and clients choose it with the name of the service"),
		honoured("StatusRequest.verbose", "the configuration and the network in use"),

		honoured("StopPodSandboxRequest.pod_sandbox_id", "", idempotent),
		honoured("RemovePodSandboxRequest.pod_sandbox_id", "", idempotent),
		honoured("PodSandboxStatusRequest.pod_sandbox_id", ""),
		honoured("PodSandboxStatusRequest.verbose", "a document with the configuration, the specification and berth's record", "test/e2e.TestVerboseStatusIsWhatCrictlReads"),
		honoured("ListPodSandboxRequest.filter", ""),
		honoured("StreamPodSandboxesRequest.filter", ""),
		honoured("PodSandboxFilter.id", "an ID, or the beginning of one", lists),
		honoured("PodSandboxFilter.state", "", lists),
		honoured("PodSandboxStateValue.state", "", lists),
		honoured("PodSandboxFilter.label_selector", "", lists),

		honoured("StartContainerRequest.container_id", "", "pod.TestAStartThatWasCutOffCanBeAskedForAgain"),
		honoured("StopContainerRequest.container_id", "", idempotent),
		honoured("StopContainerRequest.timeout", "a negative one is 0: the container is killed at once", "test/e2e.TestStopAsksThenKills"),
		honoured("RemoveContainerRequest.container_id", "", idempotent),
		honoured("ListContainersRequest.filter", ""),
		honoured("StreamContainersRequest.filter", ""),
		honoured("ContainerFilter.id", "an ID, or the beginning of one", lists),
		honoured("ContainerFilter.state", "", lists),
		honoured("ContainerStateValue.state", "", lists),
		honoured("ContainerFilter.pod_sandbox_id", "", lists),
		honoured("ContainerFilter.label_selector", "", lists),
		honoured("ContainerStatusRequest.container_id", ""),
		honoured("ContainerStatusRequest.verbose", "as for a sandbox", "test/e2e.TestVerboseStatusIsWhatCrictlReads"),
		honoured("ReopenContainerLogRequest.container_id", "", "logs.TestRotationUnderLoadLosesNothing"),

		honoured("ContainerStatsRequest.container_id", "", "stats.TestStatsOfAContainer"),
		honoured("ListContainerStatsRequest.filter", ""),
		honoured("StreamContainerStatsRequest.filter", ""),
		honoured("ContainerStatsFilter.id", "", stats),
		honoured("ContainerStatsFilter.pod_sandbox_id", "", stats),
		honoured("ContainerStatsFilter.label_selector", "", stats),
		honoured("PodSandboxStatsRequest.pod_sandbox_id", "", "stats.TestStatsOfAPod"),
		honoured("ListPodSandboxStatsRequest.filter", ""),
		honoured("StreamPodSandboxStatsRequest.filter", ""),
		honoured("PodSandboxStatsFilter.id", "", stats),
		honoured("PodSandboxStatsFilter.label_selector", "", stats),
	}
}
