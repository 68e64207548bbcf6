// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The functions in this file name a field that would otherwise be ignored, or cause an obscure
// error much later. They look at the request alone.

// refuseSandbox refuses sandbox fields that berth does not support.
func refuseSandbox(cfg *runtimeapi.PodSandboxConfig) error {
	if cfg.GetWindows() != nil {
		return errWindows()
	}
	if err := checkHostname(cfg.GetHostname()); err != nil {
		return err
	}
	sec := cfg.GetLinux().GetSecurityContext()
	if err := refusePorts(cfg.GetPortMappings(), sec.GetNamespaceOptions().GetNetwork()); err != nil {
		return err
	}
	if _, err := BandwidthOf(cfg.GetAnnotations()); err != nil {
		return err
	}
	if err := refuseTarget(sec.GetNamespaceOptions()); err != nil {
		return err
	}
	if err := refuseSandboxGroups(sec.GetNamespaceOptions()); err != nil {
		return err
	}
	if err := refuseUser(sec); err != nil {
		return err
	}
	for field, r := range map[string]*runtimeapi.LinuxContainerResources{
		"overhead":  cfg.GetLinux().GetOverhead(),
		"resources": cfg.GetLinux().GetResources(),
	} {
		if err := checkResources(r); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	return nil
}

// refuseContainer refuses container fields that berth does not support.
func refuseContainer(cfg *runtimeapi.ContainerConfig) error {
	if cfg.GetWindows() != nil {
		return errWindows()
	}
	if s := cfg.GetStopSignal(); runtimeapi.Signal_name[int32(s)] == "" {
		return fmt.Errorf("stop_signal: %d is not known: %w", s, errdefs.ErrInvalidArgument)
	}
	sec := cfg.GetLinux().GetSecurityContext()
	if err := refuseTarget(sec.GetNamespaceOptions()); err != nil {
		return err
	}
	if err := checkGroups(sec); err != nil {
		return err
	}
	for field, list := range map[string][]string{"masked_paths": sec.GetMaskedPaths(), "readonly_paths": sec.GetReadonlyPaths()} {
		for _, p := range list {
			if !path.IsAbs(p) || strings.Contains(p, "\x00") {
				return fmt.Errorf("%s: %q is not an absolute path: %w", field, p, errdefs.ErrInvalidArgument)
			}
		}
	}
	for _, m := range cfg.GetMounts() {
		if err := refuseMount(m); err != nil {
			return err
		}
	}
	return checkResources(cfg.GetLinux().GetResources())
}

func errWindows() error {
	return fmt.Errorf("windows: this is Linux: %w", errdefs.ErrInvalidArgument)
}

// refusePorts refuses mappings that cannot be made. On the host's network a mapping of a port to
// itself is accepted, because it is already true and the kubelet sends it.
func refusePorts(ports []*runtimeapi.PortMapping, network runtimeapi.NamespaceMode) error {
	for _, p := range ports {
		host, container := p.GetHostPort(), p.GetContainerPort()
		switch {
		case host < 0 || host > math.MaxUint16 || container < 0 || container > math.MaxUint16:
			return fmt.Errorf("port_mappings: port mapping %d:%d is out of range: %w", host, container, errdefs.ErrInvalidArgument)
		case runtimeapi.Protocol_name[int32(p.GetProtocol())] == "":
			return fmt.Errorf("port_mappings: protocol %d is not known: %w", p.GetProtocol(), errdefs.ErrInvalidArgument)
		case host > 0 && container == 0:
			return fmt.Errorf("port_mappings: host_port %d has no container_port: %w", host, errdefs.ErrInvalidArgument)
		case network == onNode && host > 0 && host != container:
			return fmt.Errorf("port_mappings: host_port %d cannot lead to container_port %d: the pod uses host networking: %w",
				host, container, errdefs.ErrInvalidArgument)
		}
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return fmt.Errorf("port_mappings: host_ip %q is not an IP address: %w", ip, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// refuseTarget refuses a target container if the PID mode is not TARGET.
func refuseTarget(ns *runtimeapi.NamespaceOption) error {
	if ns.GetTargetId() != "" && ns.GetPid() != inTarget {
		return fmt.Errorf("namespace_options.target_id: it needs the pid mode TARGET, and the mode is %s: %w", ns.GetPid(), errdefs.ErrInvalidArgument)
	}
	return nil
}

// refuseUser refuses a user of the sandbox's that is not one. A valid one has no effect: the pause
// process runs as a user of its own.
func refuseUser(sec *runtimeapi.LinuxSandboxSecurityContext) error {
	if sec.GetRunAsGroup() != nil && sec.GetRunAsUser() == nil {
		return fmt.Errorf("run_as_group: it needs a user: %w", errdefs.ErrInvalidArgument)
	}
	if runtimeapi.SupplementalGroupsPolicy_name[int32(sec.GetSupplementalGroupsPolicy())] == "" {
		return fmt.Errorf("supplemental_groups_policy: %d is not known: %w", sec.GetSupplementalGroupsPolicy(), errdefs.ErrInvalidArgument)
	}
	for field, ids := range map[string][]int64{
		"run_as_user":         {sec.GetRunAsUser().GetValue()},
		"run_as_group":        {sec.GetRunAsGroup().GetValue()},
		"supplemental_groups": sec.GetSupplementalGroups(),
	} {
		for _, id := range ids {
			if id < 0 || id > math.MaxInt32 {
				return fmt.Errorf("%s: %d is not an ID: %w", field, id, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// mountOptions are the options that a mount may ask for besides its own fields. None of them lifts
// a restriction of the mount on the host.
var mountOptions = []string{"noatime", "nodev", "nodiratime", "noexec", "nosuid", "nosymfollow", "relatime", "strictatime"}

// refuseMount refuses a mount before the directory that it mounts is made on the host.
func refuseMount(m *runtimeapi.Mount) error {
	if p := m.GetHostPath(); m.GetImage() == nil && (!path.IsAbs(p) || strings.Contains(p, "\x00")) {
		return fmt.Errorf("mount %s: host_path %q is not absolute: %w", m.GetContainerPath(), p, errdefs.ErrInvalidArgument)
	}
	for _, o := range m.GetMountOptions() {
		if !slices.Contains(mountOptions, o) {
			return fmt.Errorf("mount %s: mount_options: %q is not one of %s: %w",
				m.GetContainerPath(), o, strings.Join(mountOptions, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

var (
	// cpuList is the kernel's form of a set of CPUs or memory nodes, such as 0-3,7.
	cpuList = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	// unifiedKey is a file of a cgroup, such as memory.high.
	unifiedKey = regexp.MustCompile(`^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
)

// checkResources refuses values that are invalid as the complete resources of a container.
// [CheckResources] also accepts a part of them.
func checkResources(r *runtimeapi.LinuxContainerResources) error {
	if swap := r.GetMemorySwapLimitInBytes(); swap > 0 && r.GetMemoryLimitInBytes() == 0 {
		return fmt.Errorf("memory_swap_limit_in_bytes: %d is a limit of memory and swap together, and there is no memory_limit_in_bytes: %w",
			swap, errdefs.ErrInvalidArgument)
	}
	return CheckResources(r)
}

// checkSettings refuses lists and settings that the kernel would refuse when the container starts.
func checkSettings(r *runtimeapi.LinuxContainerResources) error {
	for field, v := range map[string]string{"cpuset_cpus": r.GetCpusetCpus(), "cpuset_mems": r.GetCpusetMems()} {
		if v != "" && !cpuList.MatchString(v) {
			return fmt.Errorf("linux.%s: %q is not a list such as 0-3,7: %w", field, v, errdefs.ErrInvalidArgument)
		}
	}
	for k, v := range r.GetUnified() {
		if !unifiedKey.MatchString(k) || strings.Contains(v, "\x00") {
			return fmt.Errorf("linux.unified: %q: %q is not a setting of a cgroup, such as memory.high: %w", k, v, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
