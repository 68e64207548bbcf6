// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is what a sandbox's specification is made from.
type Sandbox struct {
	ID                           string
	Config                       *runtimeapi.PodSandboxConfig
	NetNS                        string // path; "" for host networking
	PauseRootfs                  string
	PauseArgs                    []string
	PrivilegedWithoutHostDevices bool
	PodAnnotations               []string // patterns of annotations that are passed through
}

// pauseShares is little: the pause process only waits.
const pauseShares = 2

// ForSandbox is the specification of a sandbox's pause process.
func ForSandbox(h Host, in Sandbox) (*specs.Spec, []Degraded, error) {
	cfg := in.Config
	sec := cfg.GetLinux().GetSecurityContext()
	ns := sec.GetNamespaceOptions()
	s := base()
	s.Root = &specs.Root{Path: in.PauseRootfs, Readonly: true}
	s.Process.Args = append([]string(nil), in.PauseArgs...)
	s.Process.Cwd = "/"
	s.Process.User = specs.User{UID: 65535, GID: 65535}
	s.Process.Capabilities = &specs.LinuxCapabilities{} // the pause process needs none
	s.Process.NoNewPrivileges = true
	s.Hostname = cfg.GetHostname()
	s.Mounts = defaultMounts(h, false)[:2] // it looks at nothing; an OCI runtime needs /proc and /dev
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = defaultMasked(), defaultReadonly()

	var err error
	if s.Linux.Namespaces, err = sandboxNamespaces(ns, in.NetNS); err != nil {
		return nil, nil, err
	}
	if ns.GetNetwork() == onNode && s.Hostname != "" {
		return nil, nil, fmt.Errorf("hostname %q: the pod uses host networking, and so the host's name: %w", s.Hostname, errdefs.ErrInvalidArgument)
	}
	if s.Linux.Sysctl, err = sysctls(cfg, ns); err != nil {
		return nil, nil, err
	}
	if s.Linux.CgroupsPath, err = cgroupsPath(h.SystemdCgroup, cfg.GetLinux().GetCgroupParent(), in.ID); err != nil {
		return nil, nil, err
	}
	shares := uint64(pauseShares)
	s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Devices: denyDevices()}
	degraded := oomScore(h, s, -998)
	if err := applySeccomp(h, s, profile(sec.GetSeccomp(), false)); err != nil {
		return nil, nil, err
	}
	if s.Linux.Seccomp != nil {
		// The pause program is berth's own, and native: no other architecture's calls are let through, and the filter
		// takes a third of the time to build.
		s.Linux.Seccomp.Architectures = s.Linux.Seccomp.Architectures[:1]
	}
	applySELinux(s, sec.GetSelinuxOptions())
	s.Annotations = passThrough(cfg.GetAnnotations(), in.PodAnnotations)
	identify(s, cfg, in.ID)
	s.Annotations["io.kubernetes.cri.container-type"] = "sandbox"
	s.Annotations["io.kubernetes.cri.sandbox-log-directory"] = cfg.GetLogDirectory()
	if r := cfg.GetLinux().GetResources(); r != nil {
		s.Annotations["io.kubernetes.cri.sandbox-cpu-period"] = strconv.FormatInt(r.GetCpuPeriod(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-cpu-quota"] = strconv.FormatInt(r.GetCpuQuota(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-cpu-shares"] = strconv.FormatInt(r.GetCpuShares(), 10)
		s.Annotations["io.kubernetes.cri.sandbox-memory"] = strconv.FormatInt(r.GetMemoryLimitInBytes(), 10)
	}
	return s, degraded, nil
}

// base is what every specification has.
func base() *specs.Spec {
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{},
		Linux:   &specs.Linux{},
	}
}

// identify writes the annotations by which the shim groups a pod and agents find it.
func identify(s *specs.Spec, cfg *runtimeapi.PodSandboxConfig, id string) {
	m := cfg.GetMetadata()
	s.Annotations["io.kubernetes.cri.sandbox-id"] = id
	s.Annotations["io.kubernetes.cri.sandbox-name"] = m.GetName()
	s.Annotations["io.kubernetes.cri.sandbox-namespace"] = m.GetNamespace()
	s.Annotations["io.kubernetes.cri.sandbox-uid"] = m.GetUid()
}

// passThrough copies the annotations that match one of the patterns (path.Match, a trailing * takes the rest).
// runc makes properties of systemd units from some; those never pass.
func passThrough(annotations map[string]string, patterns []string) map[string]string {
	out := map[string]string{}
	for k, v := range annotations {
		if strings.HasPrefix(k, "org.systemd.property.") {
			continue
		}
		for _, p := range patterns {
			prefix, star := strings.CutSuffix(p, "*")
			if ok, err := path.Match(p, k); err == nil && ok || star && strings.HasPrefix(k, prefix) {
				out[k] = v
			}
		}
	}
	return out
}

// sysctls checks that each is one setting of a namespace that the pod has of its own.
func sysctls(cfg *runtimeapi.PodSandboxConfig, ns *runtimeapi.NamespaceOption) (map[string]string, error) {
	out := map[string]string{}
	if ns.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		// In a network of its own a pod needs no privilege for low ports and ping.
		out["net.ipv4.ip_unprivileged_port_start"], out["net.ipv4.ping_group_range"] = "0", "0 2147483647"
	}
	for k, v := range cfg.GetLinux().GetSysctls() {
		name := strings.ReplaceAll(k, "/", ".")
		if name == "" || strings.Contains(name, "..") || strings.ContainsAny(k, "+=, \t\n") {
			return nil, fmt.Errorf("sysctl %q is no name of a setting: %w", k, errdefs.ErrInvalidArgument)
		}
		if strings.ContainsAny(v, "+\n") {
			return nil, fmt.Errorf("sysctl %s: value %q holds more than a value: %w", k, v, errdefs.ErrInvalidArgument)
		}
		switch {
		case strings.HasPrefix(name, "net."):
			if ns.GetNetwork() == runtimeapi.NamespaceMode_NODE {
				return nil, fmt.Errorf("sysctl %s would change the host: the pod uses host networking: %w", k, errdefs.ErrInvalidArgument)
			}
		case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
			if ns.GetIpc() == runtimeapi.NamespaceMode_NODE {
				return nil, fmt.Errorf("sysctl %s would change the host: the pod uses the host's IPC namespace: %w", k, errdefs.ErrInvalidArgument)
			}
		default:
			return nil, fmt.Errorf("sysctl %s belongs to no namespace and would change the host: %w", k, errdefs.ErrInvalidArgument)
		}
		out[name] = v
	}
	return out, nil
}

// cgroupsPath is parent/ID for cgroupfs, and slice:prefix:ID for systemd.
func cgroupsPath(systemd bool, parent, id string) (string, error) {
	if strings.Contains(parent, "..") || strings.ContainsAny(parent, "\n") {
		return "", fmt.Errorf("cgroup parent %q leaves its place: %w", parent, errdefs.ErrInvalidArgument)
	}
	if systemd {
		slice := path.Base(parent)
		if parent == "" {
			slice = "system.slice"
		}
		if !strings.HasSuffix(slice, ".slice") {
			return "", fmt.Errorf("cgroup parent %q is no systemd slice, and the cgroup driver is systemd: %w", parent, errdefs.ErrInvalidArgument)
		}
		return slice + ":cri-containerd:" + id, nil
	}
	if strings.HasSuffix(parent, ".slice") && !strings.Contains(parent, "/") {
		return "", fmt.Errorf("cgroup parent %q is a systemd slice, and the cgroup driver is cgroupfs: %w", parent, errdefs.ErrInvalidArgument)
	}
	if parent == "" {
		parent = "/k8s.io"
	}
	return path.Join(parent, id), nil
}

// EtcFiles are /etc/hosts, /etc/hostname and /etc/resolv.conf of a pod. Where the pod has DNS settings of its own, the
// host's resolv.conf is not used.
func EtcFiles(cfg *runtimeapi.PodSandboxConfig, hostResolv []byte, hostname string) (hosts, name, resolv []byte, err error) {
	if strings.ContainsAny(hostname, " \t\n\x00") || len(hostname) > 64 {
		return nil, nil, nil, fmt.Errorf("hostname %q is not one: %w", hostname, errdefs.ErrInvalidArgument)
	}
	hosts = []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n")
	name = []byte(hostname + "\n")
	dns := cfg.GetDnsConfig()
	if dns == nil || len(dns.GetServers())+len(dns.GetSearches())+len(dns.GetOptions()) == 0 {
		return hosts, name, hostResolv, nil
	}
	for _, v := range append(append(append([]string(nil), dns.GetServers()...), dns.GetSearches()...), dns.GetOptions()...) {
		if strings.ContainsAny(v, "\n\r\x00") {
			return nil, nil, nil, fmt.Errorf("DNS setting %q is more than one line: %w", v, errdefs.ErrInvalidArgument)
		}
	}
	var b strings.Builder
	if s := dns.GetSearches(); len(s) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s, " "))
	}
	for _, s := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if o := dns.GetOptions(); len(o) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o, " "))
	}
	return hosts, name, []byte(b.String()), nil
}
