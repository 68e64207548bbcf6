// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is what a container's specification is made from.
type Container struct {
	ID, SandboxID string
	SandboxPID    uint32 // of the pause process
	TargetPID     uint32 // of the container whose PID namespace is joined, for NamespaceMode TARGET
	Config        *runtimeapi.ContainerConfig
	Sandbox       *runtimeapi.PodSandboxConfig
	Image         ocispec.ImageConfig
	ImageName     string
	Passwd, Group []byte // the image's /etc/passwd and /etc/group
	NetNS         string // path; "" for host networking
	Hostname      string
	// Files are the pod's own files that are mounted where the configuration mounts none: container
	// path by host path (/etc/hosts, /etc/hostname, /etc/resolv.conf, /dev/shm).
	Files map[string]string
	// Volumes are the image's volumes: container path by host directory.
	Volumes map[string]string
	// Devices resolves a host path (a device node or a directory of them).
	Devices                      func(path string) ([]Device, error)
	PrivilegedWithoutHostDevices bool
	PodAnnotations               []string // patterns
	ContainerAnnotations         []string // patterns
	// Seccomp loads a Localhost profile.
	Seccomp func(path string) (*specs.LinuxSeccomp, error)
}

// ForContainer is a container's specification.
func ForContainer(h Host, in Container) (*specs.Spec, []Degraded, error) {
	cfg := in.Config
	sec := cfg.GetLinux().GetSecurityContext()
	privileged := sec.GetPrivileged()
	if privileged && !in.Sandbox.GetLinux().GetSecurityContext().GetPrivileged() {
		return nil, nil, fmt.Errorf("a privileged container needs a privileged sandbox: %w", errdefs.ErrInvalidArgument)
	}
	s := base()
	s.Root = &specs.Root{Path: "rootfs", Readonly: sec.GetReadonlyRootfs()}
	s.Process.Terminal = cfg.GetTty()
	s.Process.NoNewPrivileges = sec.GetNoNewPrivs()
	if err := process(s, in); err != nil {
		return nil, nil, err
	}
	if err := capabilities(h, s, sec); err != nil {
		return nil, nil, err
	}
	if err := namespaces(h, s, in); err != nil {
		return nil, nil, err
	}
	if err := mounts(h, s, in); err != nil {
		return nil, nil, err
	}
	if !privileged {
		s.Linux.MaskedPaths = slices.Clone(sec.GetMaskedPaths())
		s.Linux.ReadonlyPaths = slices.Clone(sec.GetReadonlyPaths())
	}
	degraded, err := resources(h, s, in)
	if err != nil {
		return nil, nil, err
	}
	if err := devices(h, s, in); err != nil {
		return nil, nil, err
	}
	if err := confine(h, s, in); err != nil {
		return nil, nil, err
	}
	s.Annotations = passThrough(in.Sandbox.GetAnnotations(), in.PodAnnotations)
	maps.Copy(s.Annotations, passThrough(cfg.GetAnnotations(), in.ContainerAnnotations))
	identify(s, in.Sandbox, in.SandboxID)
	s.Annotations["io.kubernetes.cri.container-type"] = "container"
	s.Annotations["io.kubernetes.cri.container-name"] = cfg.GetMetadata().GetName()
	s.Annotations["io.kubernetes.cri.image-name"] = in.ImageName
	return s, degraded, nil
}

// process sets arguments, environment, directory and user.
func process(s *specs.Spec, in Container) error {
	cfg := in.Config
	name := cfg.GetMetadata().GetName()
	args := slices.Clone(cfg.GetCommand())
	if len(args) == 0 {
		args = slices.Clone(in.Image.Entrypoint)
		if len(cfg.GetArgs()) == 0 {
			args = append(args, in.Image.Cmd...)
		}
	}
	args = append(args, cfg.GetArgs()...)
	if len(args) == 0 {
		return fmt.Errorf("container %s has no command: neither its configuration nor the image %s gives one: %w", name, in.ImageName, errdefs.ErrInvalidArgument)
	}
	s.Process.Args = args

	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + in.Hostname}
	if s.Process.Terminal {
		env = append(env, "TERM=xterm")
	}
	for _, e := range in.Image.Env {
		env = setEnv(env, e)
	}
	for _, e := range cfg.GetEnvs() {
		if strings.ContainsAny(e.GetKey(), "=\x00") || e.GetKey() == "" || bytes.IndexByte(e.GetValue(), 0) >= 0 {
			return fmt.Errorf("container %s: environment variable %q is not one: %w", name, e.GetKey(), errdefs.ErrInvalidArgument)
		}
		env = setEnv(env, e.GetKey()+"="+string(e.GetValue()))
	}

	cwd := cfg.GetWorkingDir()
	if cwd == "" {
		cwd = in.Image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(cwd) {
		return fmt.Errorf("container %s: working directory %q is not absolute: %w", name, cwd, errdefs.ErrInvalidArgument)
	}
	cwd = path.Clean(cwd)
	if strings.HasPrefix(cwd, "/proc/self/fd") || strings.HasPrefix(cwd, "/proc/thread-self/fd") { // CVE-2024-21626
		return fmt.Errorf("container %s: working directory %q is a descriptor, not a directory: %w", name, cwd, errdefs.ErrInvalidArgument)
	}
	s.Process.Cwd = cwd

	user, home, err := resolveUser(in)
	if err != nil {
		return fmt.Errorf("container %s: %w", name, err)
	}
	s.Process.User = user
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		env = append(env, "HOME="+home)
	}
	s.Process.Env = env
	return nil
}

// setEnv sets a variable, in place of an earlier one of the same name.
func setEnv(env []string, e string) []string {
	key, _, _ := strings.Cut(e, "=")
	for i := range env {
		if k, _, _ := strings.Cut(env[i], "="); k == key {
			env[i] = e
			return env
		}
	}
	return append(env, e)
}

func profile(p *runtimeapi.SecurityProfile, privileged bool) *runtimeapi.SecurityProfile {
	if privileged {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	return p
}
