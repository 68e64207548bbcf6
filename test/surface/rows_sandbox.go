// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// run asks for a sandbox that differs from a plain one.
func run(edit func(*runtimeapi.PodSandboxConfig)) *runtimeapi.RunPodSandboxRequest {
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "new", Namespace: "ns", Uid: "uid"},
		Hostname: "new",
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	edit(cfg)
	return &runtimeapi.RunPodSandboxRequest{Config: cfg}
}

func sandboxRows() []Row {
	const pauseUser = "the pause process, where the pod has one, runs as user 65535, or as the user of the configured sandbox image, and a value that is not an ID is refused"
	return []Row{
		honoured("RunPodSandboxRequest.config", ""),
		honoured("RunPodSandboxRequest.runtime_handler", "a handler that is not configured is InvalidArgument", "test/e2e.TestBadInputIsRefusedInWords"),

		honoured("PodSandboxConfig.metadata", ""),
		honoured("PodSandboxMetadata.name", "part of the name, which only one sandbox has; reported", "pod.TestARetriedCallJoinsTheOneInFlight"),
		honoured("PodSandboxMetadata.uid", "as name; an argument of CNI", "network.TestNamesThatWouldBeArgumentsAreRefused"),
		honoured("PodSandboxMetadata.namespace", "as uid", "network.TestNamesThatWouldBeArgumentsAreRefused"),
		honoured("PodSandboxMetadata.attempt", "as name"),
		honoured("PodSandboxConfig.hostname", "the UTS namespace, /etc/hostname and /etc/hosts; refused on host networking",
			"spec.TestNamesOfAPodStayInTheirFiles", "spec.TestAHostnameOnTheHostsNetworkIsRefused"),
		honoured("PodSandboxConfig.log_directory", "where the logs of containers go; it may lead through links, and must not be one itself", "logs.TestALogPathThatLeavesItsDirectoryIsRefused", "logs.TestTheDirectoryOfAllLogsMayBeALink"),
		honoured("PodSandboxConfig.dns_config", "/etc/resolv.conf, and the CNI capability dns; without it the pod has the host's"),
		honoured("DNSConfig.servers", "", "spec.TestNamesOfAPodStayInTheirFiles"),
		honoured("DNSConfig.searches", ""),
		honoured("DNSConfig.options", ""),
		honoured("PodSandboxConfig.port_mappings", "by the CNI capability portMappings; if no plug-in has it, this is logged"),
		honoured("PortMapping.protocol", ""),
		honoured("PortMapping.container_port", ""),
		honoured("PortMapping.host_port", "0 maps nothing. On host networking only a mapping of a port to itself is possible, and another one is refused",
			"spec.TestPortsThatCannotBeMappedAreRefused"),
		honoured("PortMapping.host_ip", "on host networking a program binds the addresses that it chooses"),
		honoured("PodSandboxConfig.labels", "reported, and lists select by them", "pod.TestListsShareWhatHasNotChanged", "spec.TestLabelsOfPodsDoNotSpeakForBerth"),
		honoured("PodSandboxConfig.annotations",
			"reported, handed to CNI plug-ins and, as the handler is configured, to the OCI runtime. kubernetes.io/ingress-bandwidth and egress-bandwidth "+
				"are limits by the CNI capability bandwidth; if no plug-in has it, this is logged",
			"spec.TestAnnotationsNeverBecomeUnitProperties", "network.TestTheBandwidthOfAPodGoesToThePluginsThatCanLimitIt"),
		honoured("PodSandboxConfig.linux", ""),
		below(refused("PodSandboxConfig.windows", codes.InvalidArgument, "this is Linux", run(func(c *runtimeapi.PodSandboxConfig) {
			c.Windows = &runtimeapi.WindowsPodSandboxConfig{}
		}))),

		honoured("LinuxPodSandboxConfig.cgroup_parent", "a path or a systemd slice, as the cgroup driver of the handler is", "spec.TestCgroupPathsPerDriver"),
		honoured("LinuxPodSandboxConfig.security_context", ""),
		honoured("LinuxPodSandboxConfig.sysctls", "those of the namespaces that the pod has of its own; others are refused", "spec.TestSysctlValuesCannotSmuggle"),
		below(noEffect("LinuxPodSandboxConfig.overhead", "the kubelet, which makes the pod's cgroup, has added it there; a value that cannot be is refused, and it is shown with verbose")),
		below(honoured("LinuxPodSandboxConfig.resources", "CPU period, quota and shares and the memory limit are annotations of the sandbox's specification, by which shims of virtual machines size them. The pod's cgroup is the kubelet's")),

		honoured("LinuxSandboxSecurityContext.namespace_options", ""),
		honoured("LinuxSandboxSecurityContext.selinux_options", "if the host has SELinux; otherwise the timeline notes that it has not", "spec.TestSELinuxLabelsAreGivenOrSaidToBeMissing"),
		below(noEffect("LinuxSandboxSecurityContext.run_as_user", pauseUser)),
		below(noEffect("LinuxSandboxSecurityContext.run_as_group", pauseUser+"; without run_as_user it is refused")),
		noEffect("LinuxSandboxSecurityContext.readonly_rootfs", "the root of the pause process is always read-only"),
		noEffect("LinuxSandboxSecurityContext.supplemental_groups", pauseUser),
		noEffect("LinuxSandboxSecurityContext.supplemental_groups_policy", "the pause process is in no groups; an unknown policy is refused"),
		honoured("LinuxSandboxSecurityContext.privileged", "without it no container of the pod can be privileged", "spec.TestPrivilegedNeedsAPrivilegedSandbox"),
		honoured("LinuxSandboxSecurityContext.seccomp", "of the pause process, where the pod has one", "spec.TestTheSandboxGetsWhatItNeeds", "spec.TestSeccompIsGivenOrRefused"),
		honoured("LinuxSandboxSecurityContext.apparmor", "of the pause process, where the pod has one; refused where the host has no AppArmor", "spec.TestAppArmorIsGivenOrRefused"),
		honoured("LinuxSandboxSecurityContext.seccomp_profile_path", "deprecated, for older kubelets", "spec.TestSeccompIsGivenOrRefused"),
		refused("RunPodSandboxRequest.config.linux.security_context.namespace_options.target_id", codes.InvalidArgument,
			"a sandbox has no target container", run(func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions.TargetId = "c"
			})),
	}
}
