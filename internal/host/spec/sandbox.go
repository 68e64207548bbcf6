// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is the input for the specification of a sandbox.
type Sandbox struct {
	ID     string
	Config *runtimeapi.PodSandboxConfig
	NetNS  string // path; "" for host networking
	// UserNS is the path of the user namespace that owns the network namespace, for a pod that asks
	// for one of its own; "" for a new one.
	UserNS                       string
	Pause                        Pause
	PrivilegedWithoutHostDevices bool
	SystemdCgroup                bool     // the handler's cgroup driver, instead of cgroupfs
	PodAnnotations               []string // patterns of annotations that are passed through
	// Guest is set if the pod has a kernel of its own, whose network is invisible to processes of
	// this host. Its OCI runtime sets the sysctls of the network there; else they are not in the
	// specification, and are set on this host (see NetSysctls).
	Guest    bool
	Profiles Profiles
}

// pauseShares are the CPU shares of the pause process, which only waits.
const pauseShares = 2

// ForSandbox returns the specification of a sandbox's pause process, and the parts of the request
// that this host cannot do and the sandbox works without. Errors name the field that is refused;
// the caller adds the sandbox's name.
func ForSandbox(h Host, in Sandbox) (*specs.Spec, []Degraded, error) {
	cfg := in.Config
	ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if err := CheckSandbox(cfg); err != nil {
		return nil, nil, err
	}
	s := base(h, nil)
	if err := pauseProcess(s, in.Pause); err != nil {
		return nil, nil, err
	}
	s.Hostname = cfg.GetHostname()
	// an OCI runtime needs /proc and /dev, the pause process neither
	s.Mounts = defaultMounts(false)[:2]
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = defaultMasked(), defaultReadonly()
	var err error
	if s.Linux.Namespaces, err = sandboxNamespaces(ns, in.NetNS, in.UserNS); err != nil {
		return nil, nil, err
	}
	if ids, ok := UserNamespace(cfg); ok {
		s.Linux.UIDMappings, s.Linux.GIDMappings = ids.mappings()
		s.Process.User.UID = min(s.Process.User.UID, ids.UIDs-1)
		s.Process.User.GID = min(s.Process.User.GID, ids.GIDs-1)
	}
	if ns.GetNetwork() == onNode && s.Hostname != "" {
		return nil, nil, fmt.Errorf("hostname: %q cannot be set on host networking, where the host's name is used: %w", s.Hostname, errdefs.ErrInvalidArgument)
	}
	net, others, err := sysctls(h, cfg)
	if err != nil {
		return nil, nil, err
	}
	if in.Guest {
		maps.Copy(others, net)
	}
	s.Linux.Sysctl = others
	if s.Linux.CgroupsPath, err = cgroupsPath(in.SystemdCgroup, cfg.GetLinux().GetCgroupParent(), in.ID); err != nil {
		return nil, nil, err
	}
	s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Devices: denyDevices()}
	if shares := uint64(pauseShares); !slices.Contains(h.Lacks, "cpu") {
		s.Linux.Resources.CPU.Shares = &shares
	}
	degraded := oomScore(h, s, -998)
	s.Annotations = sandboxAnnotations(cfg, in)
	lost, err := confineSandbox(h, s, in)
	if err != nil {
		return nil, nil, err
	}
	return s, slices.Concat(degraded, lost, userRlimits(h, s)), nil
}

// confineSandbox applies the requested confinement to the pause process. SELinux comes last, as for
// a container.
func confineSandbox(h Host, s *specs.Spec, in Sandbox) ([]Degraded, error) {
	sec := in.Config.GetLinux().GetSecurityContext()
	//nolint:staticcheck // deprecated, and sent by older kubelets
	p, err := profile("seccomp", sec.GetSeccomp(), "seccomp_profile_path", sec.GetSeccompProfilePath())
	if err != nil {
		return nil, err
	}
	if err := applySeccomp(h, s, p, in.Profiles); err != nil {
		return nil, err
	}
	if p.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault && s.Linux.Seccomp != nil {
		// A pause program is native: the system calls of other architectures stay forbidden, and
		// the filter takes a third of the time to build.
		s.Linux.Seccomp.Architectures = native(s.Linux.Seccomp.Architectures)
	}
	if p, err = profile("apparmor", sec.GetApparmor(), "", ""); err != nil {
		return nil, err
	}
	if p != nil {
		if err := applyAppArmor(h, s, p); err != nil {
			return nil, err
		}
	}
	return seLinux(h, s, sec.GetSelinuxOptions(), "")
}

// sandboxAnnotations returns the annotations by which shims and agents identify a pod and read its
// resources.
func sandboxAnnotations(cfg *runtimeapi.PodSandboxConfig, in Sandbox) map[string]string {
	s := specs.Spec{Annotations: passThrough(cfg.GetAnnotations(), in.PodAnnotations)}
	identify(&s, cfg, in.ID)
	s.Annotations["io.kubernetes.cri.container-type"] = "sandbox"
	s.Annotations["io.kubernetes.cri.sandbox-log-directory"] = cfg.GetLogDirectory()
	if r := cfg.GetLinux().GetResources(); r != nil {
		s.Annotations["io.kubernetes.cri.sandbox-cpu-period"] = strconv.FormatInt(r.GetCpuPeriod(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-cpu-quota"] = strconv.FormatInt(r.GetCpuQuota(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-cpu-shares"] = strconv.FormatInt(r.GetCpuShares(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-memory"] = strconv.FormatInt(r.GetMemoryLimitInBytes(), 10)
	}
	return s.Annotations
}
