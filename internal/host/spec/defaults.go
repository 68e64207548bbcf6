// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/namespace"
)

// Defaults are what the containers of a handler get if their requests say nothing about it. The
// administrator of the node sets them; the zero value changes nothing.
type Defaults struct {
	// Seccomp is the profile of a container that asks for none, SeccompPrivileged that of a
	// privileged one: RuntimeDefault or a path. SeccompRuntime is the path of the profile that
	// RuntimeDefault stands for. Empty: none, and berth's own.
	Seccomp, SeccompRuntime, SeccompPrivileged string
	// AppArmor is the name of the profile that RuntimeDefault stands for; "" for berth's own.
	AppArmor     string
	Capabilities []string          // instead of berth's own
	Sysctls      map[string]string // of pods
	Env          []string          // NAME=VALUE
	Annotations  map[string]string
	Rlimits      []specs.POSIXRlimit
	PidsLimit    int64 // 0: none
	// ReadonlyRootfs is about containers that are not privileged.
	ReadonlyRootfs bool
	Mounts         []*runtimeapi.Mount
	// IgnoreImageVolumes is set if no volumes are made where an image declares some.
	IgnoreImageVolumes bool
	// Devices are devices that Device reads, as it does those in a pod's annotation, whose host
	// paths have to be in AllowedDevices.
	Devices, AllowedDevices []string
	Device                  func(text string) (*runtimeapi.Device, error)
	// DeviceOwnership gives devices to the user and group of the request.
	DeviceOwnership bool
	// AllDevices lets a privileged container that does not get the host's devices use all.
	AllDevices bool
	// Groups says which containers have their own control group writable, besides those that ask.
	Groups OwnGroups
	// HooksDirs are read by [LoadHooks].
	HooksDirs []string
}

// OwnGroups says which containers have their own control group writable: annotation, those of pods
// with an annotation; userns, also those of pods with a user namespace; always, all; "", none.
type OwnGroups string

// Annotations of CRI-O by which a pod asks for things, each in its two spellings.
var (
	deviceAnnotations = []string{"devices.crio.io", "io.kubernetes.cri-o.Devices"}
	groupAnnotations  = []string{"cgroup2-mount-hierarchy-rw.crio.io", "io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw"}
)

// annotation returns the value of the first of names that annotations have.
func annotation(annotations map[string]string, names []string) string {
	for _, n := range names {
		if v, ok := annotations[n]; ok {
			return v
		}
	}
	return ""
}

// of returns by which of these a container of a pod has its own control group writable; "": it has
// not.
func (o OwnGroups) of(cfg *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) OwnGroups {
	_, own := UserNamespace(pod)
	switch {
	case o == "" || cfg.GetLinux().GetSecurityContext().GetPrivileged():
		return ""
	case annotation(pod.GetAnnotations(), groupAnnotations) == "true":
		return "annotation"
	case o == "always" || o == "userns" && own:
		return o
	}
	return ""
}

// withDefaults returns the input with what the defaults add to its request, as if the request had
// asked for it.
func (in Container) withDefaults() (Container, error) {
	d := in.Defaults
	cfg := &runtimeapi.ContainerConfig{}
	proto.Merge(cfg, in.Config) // which may be nil
	if cfg.Linux == nil {
		cfg.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if cfg.Linux.SecurityContext == nil {
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{}
	}
	sec := cfg.Linux.SecurityContext
	in.Config = cfg
	sec.ReadonlyRootfs = sec.ReadonlyRootfs || d.ReadonlyRootfs && !sec.Privileged
	//nolint:staticcheck // deprecated, and what older kubelets send
	if !sec.Privileged && sec.Seccomp == nil && sec.SeccompProfilePath == "" {
		sec.Seccomp = seccompOf(d.Seccomp)
	}
	for _, m := range d.Mounts {
		if !slices.ContainsFunc(cfg.Mounts, func(have *runtimeapi.Mount) bool {
			return path.Clean("/"+have.GetContainerPath()) == m.GetContainerPath()
		}) {
			cfg.Mounts = append(cfg.Mounts, m)
		}
	}
	return in, d.addDevices(cfg, in.Sandbox.GetAnnotations())
}

// addDevices adds to a request the default devices, and those that the pod's annotation names.
func (d Defaults) addDevices(cfg *runtimeapi.ContainerConfig, pod map[string]string) error {
	add := func(text string, allowed []string) error {
		dev, err := d.Device(text)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		case allowed != nil && !slices.Contains(allowed, dev.GetHostPath()):
			return fmt.Errorf("%s is not among the allowed_devices of the runtime handler: %w", dev.GetHostPath(), errdefs.ErrFailedPrecondition)
		case !slices.ContainsFunc(cfg.Devices, func(have *runtimeapi.Device) bool { return have.GetContainerPath() == dev.GetContainerPath() }):
			cfg.Devices = append(cfg.Devices, dev)
		}
		return nil
	}
	if asked := annotation(pod, deviceAnnotations); asked != "" && len(d.AllowedDevices) > 0 {
		for text := range strings.SplitSeq(asked, ",") {
			if err := add(strings.TrimSpace(text), d.AllowedDevices); err != nil {
				return fmt.Errorf("annotation %s: %w", deviceAnnotations[0], err)
			}
		}
	}
	for _, text := range d.Devices {
		if err := add(text, nil); err != nil {
			return fmt.Errorf("defaults.devices: %w", err)
		}
	}
	return nil
}

// seccompOf returns the profile that a default names; nil for none.
func seccompOf(name string) *runtimeapi.SecurityProfile {
	switch name {
	case "":
		return nil
	case runtimeapi.SecurityProfile_RuntimeDefault.String():
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}
}

// Pod returns the configuration of a pod with the default sysctls that it does not set itself.
// Those of a namespace that it shares with the host are left out.
func (d Defaults) Pod(cfg *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	if len(d.Sysctls) == 0 {
		return cfg
	}
	asked := cfg
	cfg = &runtimeapi.PodSandboxConfig{}
	proto.Merge(cfg, asked) // which may be nil
	if cfg.Linux == nil {
		cfg.Linux = &runtimeapi.LinuxPodSandboxConfig{}
	}
	have := map[string]bool{}
	for k := range cfg.Linux.Sysctls {
		have[namespace.SysctlPath(k)] = true
	}
	ns, all := cfg.Linux.GetSecurityContext().GetNamespaceOptions(), map[string]string{}
	for k, v := range d.Sysctls {
		at := namespace.SysctlPath(k)
		shared := ns.GetIpc() == onNode
		if strings.HasPrefix(at, "net/") {
			shared = ns.GetNetwork() == onNode
		}
		if !shared && !have[at] {
			all[k] = v
		}
	}
	maps.Copy(all, cfg.Linux.Sysctls)
	cfg.Linux.Sysctls = all
	return cfg
}

// limit sets the resource limits and the number of processes.
func (d Defaults) limit(s *specs.Spec) {
	for _, l := range d.Rlimits {
		s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits, func(have specs.POSIXRlimit) bool { return have.Type == l.Type })
		s.Process.Rlimits = append(s.Process.Rlimits, l)
	}
	if n := d.PidsLimit; n > 0 {
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &n}
	}
}
