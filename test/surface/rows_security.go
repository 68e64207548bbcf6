// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

func securityRows() []Row {
	const (
		userns   = "test/e2e.TestAPodHasAUserNamespace"
		seccomp  = "spec.TestSeccompIsGivenOrRefused"
		apparmor = "spec.TestAppArmorIsGivenOrRefused"
		selinux  = "spec.TestSELinuxLabelsAreGivenOrSaidToBeMissing"
		users    = "spec.TestUsersAndGroupsAreResolved"
		modes    = "spec.TestModesThatMakeNoSenseAreRefused"
		pulled   = "spec.TestAPulledProfileIsGivenOrRefused"
		proof    = "join.TestAnIntersectionIsAsSevereAsBoth"
		groups   = "spec.TestAContainerSeesItsControlGroupsAsItAsks"
	)
	return []Row{
		honoured("LinuxContainerSecurityContext.capabilities", ""),
		honoured("LinuxContainerSecurityContext.privileged", "in a privileged sandbox; then without seccomp, AppArmor, masked and read-only paths, as CRI demands; an AppArmor profile of type Localhost is applied, as containerd does",
			"spec.TestPrivilegedNeedsAPrivilegedSandbox", "spec.TestAPrivilegedContainerHasTheAppArmorProfileThatItNames"),
		honoured("LinuxContainerSecurityContext.namespace_options", ""),
		honoured("LinuxContainerSecurityContext.selinux_options", "if the host has SELinux; otherwise the timeline notes that it has not", selinux),
		honoured("LinuxContainerSecurityContext.run_as_user", "reported in the status", users, "spec.TestIDsBeyondInt32AreRefusedAndNeverRoot"),
		honoured("LinuxContainerSecurityContext.run_as_group", "it needs a user", users),
		honoured("LinuxContainerSecurityContext.run_as_username", "a name of the image's /etc/passwd", users),
		honoured("LinuxContainerSecurityContext.readonly_rootfs", "", "spec.TestThePodsOwnFilesAreMountedWithoutDevicesOrPrograms"),
		honoured("LinuxContainerSecurityContext.supplemental_groups", "", users, "spec.TestMoreGroupsThanTheKernelTakesAreRefused"),
		honoured("LinuxContainerSecurityContext.supplemental_groups_policy", "Merge and Strict", users, "test/e2e.TestSupplementalGroupsFollowTheirPolicy"),
		honoured("LinuxContainerSecurityContext.no_new_privs", ""),
		honoured("LinuxContainerSecurityContext.masked_paths", "unless the container is privileged", "spec.TestRequestsBeyondTheirLimitsAreRefused"),
		honoured("LinuxContainerSecurityContext.readonly_paths", "unless the container is privileged", "spec.TestRequestsBeyondTheirLimitsAreRefused"),
		honoured("LinuxContainerSecurityContext.seccomp", "", seccomp),
		honoured("LinuxContainerSecurityContext.apparmor", "", apparmor),
		honoured("LinuxContainerSecurityContext.apparmor_profile", "deprecated, for older kubelets", apparmor),
		honoured("LinuxContainerSecurityContext.seccomp_profile_path", "deprecated, for older kubelets", seccomp),

		honoured("LinuxContainerSecurityContext.cgroup_mount_mode", "READ_WRITE on cgroup v2 that the host has mounted with nsdelegate, and not in the host's cgroup namespace unless the container is privileged; READ_ONLY unless it is", groups),

		honoured("Capability.add_capabilities", "", "spec.TestCapabilitiesAreAddedAndDropped"),
		honoured("Capability.drop_capabilities", "", "spec.TestCapabilitiesAreAddedAndDropped"),
		honoured("Capability.add_ambient_capabilities", "", "spec.TestCapabilitiesAreAddedAndDropped"),

		honoured("NamespaceOption.network", "POD and NODE", modes, "spec.TestTheHostsNamespacesAreForPodsThatHaveThem"),
		honoured("NamespaceOption.pid", "POD, CONTAINER, NODE and, for a container, TARGET; POD is CONTAINER for a container of a pod without a pause process, which was asked for with CONTAINER", modes, "test/e2e.TestWhatOutlivesInitIsEndedInASharedPIDNamespace"),
		honoured("NamespaceOption.ipc", "POD and NODE", modes),
		honoured("NamespaceOption.target_id", "with the pid mode TARGET; otherwise it is refused. The target has to live, as the same process, from the creation until the start", modes),
		honoured("NamespaceOption.userns_options", ""),
		honoured("NamespaceOption.cgroupns_options", "for a container of an OCI runtime on this host", groups),
		honoured("CgroupNamespace.mode", "CONTAINER and NODE; without the field a container has a namespace of its own on cgroup v2 unless it is privileged", groups),
		below(refused("RunPodSandboxRequest.config.linux.security_context.namespace_options.cgroupns_options", codes.InvalidArgument, "each container has its own",
			run(func(c *runtimeapi.PodSandboxConfig) {
				cri138.Set(c.Linux.SecurityContext.NamespaceOptions, &cri138.NamespaceOption{CgroupnsOptions: &cri138.CgroupNamespace{}})
			}))),
		honoured("UserNamespace.mode", "NODE, and POD where the handler's OCI runtime, its snapshotter and the kernel map owners",
			userns, "probe.TestUserNamespacesAreThereWhereEverythingMapsOwners"),
		honoured("UserNamespace.uids", "one range from 0 on; for a container that of its pod", userns, "spec.TestAUserNamespaceIsGivenOrRefused"),
		honoured("UserNamespace.gids", "as uids", userns, "spec.TestAUserNamespaceIsGivenOrRefused"),
		honoured("IDMapping.host_id", "", userns),
		honoured("IDMapping.container_id", "0; another one is refused", "spec.TestAUserNamespaceIsGivenOrRefused"),
		honoured("IDMapping.length", "", userns),

		honoured("SELinuxOption.user", "", selinux),
		honoured("SELinuxOption.role", "", selinux),
		honoured("SELinuxOption.type", "", selinux),
		honoured("SELinuxOption.level", "", selinux),
		honoured("Int64Value.value", ""),
		honoured("SecurityProfile.profile_type", "", seccomp, apparmor),
		honoured("SecurityProfile.localhost_ref", "", seccomp, "spec.TestSeccompProfilesAreReadAsWritten"),
		honoured("SecurityProfile.oci_ref", "for seccomp, with the type OCI: a profile that was pulled before, combined with its base", pulled, proof),
		honoured("SecurityProfile.base_profile", "the node's default profile if it is not set", pulled),
		honoured("SecurityProfileBase.type", "", pulled),
		honoured("SecurityProfileBase.localhost_ref", "with the type Localhost", pulled),
	}
}
