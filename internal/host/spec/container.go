// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is the input for the specification of a container.
type Container struct {
	ID, SandboxID string
	SandboxPID    uint32 // of the pause process; 0 if there is none
	// Pins are the paths of the pod's namespaces where it has no pause process; nil if it has one.
	Pins          *Pins
	SandboxLabel  string // the pause process's SELinux label; "" if there is none
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
	// ImageVolumes are the host directories of the images that the configuration mounts, by the
	// index of the mount.
	ImageVolumes map[int]string
	// Devices resolves a host path: a device node or a directory of them.
	Devices                      func(path string) ([]Device, error)
	PrivilegedWithoutHostDevices bool
	SystemdCgroup                bool // the handler's cgroup driver, instead of cgroupfs
	// its processes are on this host, and not in a virtual machine
	HostProcess          bool
	PodAnnotations       []string // patterns
	ContainerAnnotations []string // patterns
	// Base is the specification that the container's starts from; nil for an empty one.
	Base     *specs.Spec
	Defaults Defaults // of the handler
	Hooks    []Hook   // those that choose the container are added
	Profiles Profiles
}

// ForContainer returns a container's specification, and the parts of the request that this host
// cannot do and the container works without. Errors name the field that is refused; the caller adds
// the container's name.
func ForContainer(h Host, in Container) (*specs.Spec, []Degraded, error) {
	in, err := in.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	cfg := in.Config
	sec := cfg.GetLinux().GetSecurityContext()
	privileged := sec.GetPrivileged()
	if privileged && !in.Sandbox.GetLinux().GetSecurityContext().GetPrivileged() {
		return nil, nil, fmt.Errorf("a privileged container needs a privileged sandbox: %w", errdefs.ErrInvalidArgument)
	}
	if err := CheckContainer(cfg); err != nil {
		return nil, nil, err
	}
	if err := CheckImage(in.Image); err != nil {
		return nil, nil, err
	}
	s := base(h, in.Base)
	own := s.Linux.Resources // the device rules of the base specification
	s.Root = &specs.Root{Path: "rootfs", Readonly: sec.GetReadonlyRootfs()}
	s.Process.Terminal = cfg.GetTty()
	s.Process.NoNewPrivileges = sec.GetNoNewPrivs()
	if err := process(s, in); err != nil {
		return nil, nil, err
	}
	if err := capabilities(h, s, sec, in.Defaults.Capabilities); err != nil {
		return nil, nil, err
	}
	view, without, err := viewGroups(h, in)
	if err != nil {
		return nil, nil, err
	}
	if err := namespaces(s, in, view); err != nil {
		return nil, nil, err
	}
	if err := mounts(h, s, in, view); err != nil {
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
	in.Defaults.limit(s)
	if own != nil {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, own.Devices...)
	}
	lost, err := confine(h, s, in)
	if err != nil {
		return nil, nil, err
	}
	annotate(s, in.Defaults.Annotations)
	annotate(s, passThrough(in.Sandbox.GetAnnotations(), in.PodAnnotations))
	annotate(s, passThrough(cfg.GetAnnotations(), in.ContainerAnnotations))
	identify(s, in.Sandbox, in.SandboxID)
	s.Annotations["io.kubernetes.cri.container-type"] = "container"
	s.Annotations["io.kubernetes.cri.container-name"] = cfg.GetMetadata().GetName()
	s.Annotations["io.kubernetes.cri.image-name"] = in.ImageName
	addHooks(s, in)
	return s, slices.Concat(without, degraded, lost, userRlimits(h, s)), nil
}
