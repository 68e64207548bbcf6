// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// create asks for a container that differs from a plain one. The sandbox "pod" stands for one that
// is READY.
func create(edit func(*runtimeapi.ContainerConfig)) *runtimeapi.CreateContainerRequest {
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "new"},
		Image:    &runtimeapi.ImageSpec{Image: "registry.example/app:1"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	edit(cfg)
	return &runtimeapi.CreateContainerRequest{PodSandboxId: "pod", Config: cfg}
}

func containerRows() []Row {
	const images = "test/e2e.TestAnImageIsMountedAsAVolume"
	return []Row{
		honoured("CreateContainerRequest.pod_sandbox_id", ""),
		honoured("CreateContainerRequest.config", ""),
		below(noEffect("CreateContainerRequest.sandbox_config", "the record of the sandbox has the configuration that the sandbox was made with")),

		honoured("ContainerConfig.metadata", ""),
		honoured("ContainerMetadata.name", "part of the name, which only one container of the pod has; reported", "pod.TestARetriedCallJoinsTheOneInFlight"),
		honoured("ContainerMetadata.attempt", "as name"),
		honoured("ContainerConfig.image", ""),
		honoured("ContainerConfig.command", "takes the place of the image's entrypoint and cmd", "spec.TestArgumentsThatTheKernelDoesNotTakeAreRefused"),
		honoured("ContainerConfig.args", "takes the place of the image's cmd", "spec.TestArgumentsThatTheKernelDoesNotTakeAreRefused"),
		honoured("ContainerConfig.working_dir", "", "spec.TestAWorkingDirectoryIsNotADescriptor"),
		honoured("ContainerConfig.envs", "", "spec.TestEnvOfOneContainerNeverLeaksIntoAnother"),
		honoured("KeyValue.key", ""),
		honoured("KeyValue.value", ""),
		honoured("ContainerConfig.mounts", "reported, too", "spec.TestMountsStayInTheContainer"),
		honoured("ContainerConfig.devices", "", "spec.TestADirectoryOfDevicesIsBounded"),
		honoured("ContainerConfig.labels", "reported, and lists select by them"),
		honoured("ContainerConfig.annotations", "reported and, as the handler is configured, handed to the OCI runtime", "spec.TestAnnotationsNeverBecomeUnitProperties"),
		honoured("ContainerConfig.log_path", "", "logs.TestALogPathThatLeavesItsDirectoryIsRefused"),
		honoured("ContainerConfig.stdin", "", "test/e2e.TestAttachShowsTheOutputAndPassesTheInputOn"),
		honoured("ContainerConfig.stdin_once", "the container reads the end of its stdin when the first client that attached with input is gone",
			"test/e2e.TestAttachShowsTheOutputAndPassesTheInputOn", "stream.TestAttachWithoutInputDoesNotEndTheInputOfTheContainer"),
		honoured("ContainerConfig.tty", "", "test/e2e.TestExecHasATerminalThatFollowsTheClients"),
		honoured("ContainerConfig.linux", ""),
		below(refused("ContainerConfig.windows", codes.InvalidArgument, "this is Linux", create(func(c *runtimeapi.ContainerConfig) {
			c.Windows = &runtimeapi.WindowsContainerConfig{}
		}))),
		honoured("ContainerConfig.CDI_devices", "one that no specification has is refused", "test/e2e.TestAContainerGetsItsCDIDevices"),
		honoured("CDIDevice.name", "", "cdi.TestADeviceThatDoesNotExistIsNamed"),
		honoured("ContainerConfig.stop_signal", "takes the place of the image's; reported", "test/e2e.TestStopAsksThenKills", "pod.TestSignals"),

		honoured("CreateContainerRequest.config.image.image", "an ID, the beginning of one, a reference, or the absolute path of a checkpoint's archive; an image that holds a checkpoint is restored from where a rule of image.policy_file has restore, and PermissionDenied elsewhere",
			"image.TestResolveAndRemove", "test/e2e.TestARestoredContainerGoesOn"),
		noEffect("CreateContainerRequest.config.image.annotations", "berth knows images by their reference alone; reported in the status"),
		honoured("CreateContainerRequest.config.image.user_specified_image", "reported in the status; the rules of image.policy_file are asked about it", "pod.TestThePolicyIsAskedAboutEachImageOfAContainer"),
		honoured("CreateContainerRequest.config.mounts.image.user_specified_image", "the rules of image.policy_file are asked about it", "pod.TestThePolicyIsAskedAboutEachImageOfAContainer"),
		honoured("CreateContainerRequest.config.image.runtime_handler", "one that is not the sandbox's is InvalidArgument", "test/surface.TestAnImageIsForAHandlerThatThereIs"),
		noEffect("CreateContainerRequest.config.image.image_ref", "it belongs to answers: the digest of a volume's image"),

		honoured("Mount.container_path", "", "spec.TestMountsStayInTheContainer"),
		honoured("Mount.host_path", "a directory is made where nothing is", "spec.TestMountsStayInTheContainer"),
		honoured("Mount.readonly", ""),
		honoured("Mount.selinux_relabel", "where the host has SELinux", "selinux.TestFileSystemsWithoutLabelsAreLeftAsTheyAre"),
		honoured("Mount.propagation", "refused where the mount that host_path is on is not shared, or neither shared nor a slave", "spec.TestPropagationIsGivenOrRefused"),
		honoured("Mount.uidMappings", "in a pod with a user namespace of its own; elsewhere they are refused", "test/e2e.TestAPodHasAUserNamespace"),
		honoured("Mount.gidMappings", "as uidMappings", "test/e2e.TestAPodHasAUserNamespace"),
		honoured("Mount.recursive_read_only", "advertised for the handlers whose OCI runtime and kernel have it, and refused on a kernel that has not",
			"spec.TestARecursiveReadOnlyMountNeedsTheKernel", "probe.TestFeaturesAreAdvertisedWhereTheRuntimeAndTheKernelHaveThem"),
		honoured("Mount.image", "an image or an OCI artifact, read-only, with its digest in the status", images, "test/e2e.TestAMountedImageOutlivesItsNameAndBerth"),
		honoured("Mount.image_sub_path", "a path beneath the root of the image, which no link leaves; without an image it is refused", images),
		honoured("Mount.mount_options", "noatime, nodev, nodiratime, noexec, nosuid, nosymfollow, relatime and strictatime; others are refused", "spec.TestMountOptionsAreGivenOrRefused"),

		honoured("Device.container_path", ""),
		honoured("Device.host_path", "a device node, or a directory of them", "spec.TestADirectoryOfDevicesIsBounded"),
		honoured("Device.permissions", ""),
		honoured("LinuxContainerConfig.resources", "reported in the status as the container has them", "pod.TestAStatusHasTheUserAndTheResourcesThatTheContainerHas"),
		honoured("LinuxContainerConfig.security_context", ""),
	}
}
