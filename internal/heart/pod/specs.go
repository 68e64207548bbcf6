// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containerd/errdefs"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/inroot"
	"berth/internal/host/spec"
)

// specBuilder holds the inputs of the OCI specification of a container.
type specBuilder struct {
	host    spec.Host
	images  Images
	files   Files
	pins    Pins
	volumes *imageVolumes
	units   *registry
	labels  Labels // nil without SELinux
	obs     Observer
	// pulled reads a seccomp profile that was pulled from a registry. It may be nil.
	pulled func(ref string) ([]byte, error)
}

// profiles loads seccomp profiles for a pod of a handler.
func (s *specBuilder) profiles(h Handler) spec.Profiles {
	out := spec.Profiles{Local: loadSeccomp, Foreign: !h.HostProcess}
	if s.pulled != nil {
		out.Pulled = func(ref string) (*oci.LinuxSeccomp, error) {
			b, err := s.pulled(ref)
			if err != nil {
				return nil, err
			}
			return spec.ParseSeccomp(b, runtime.GOARCH)
		}
	}
	return out
}

// container makes the specification of u.
func (s *specBuilder) container(ctx context.Context, u *unit, img Image) (*oci.Spec, error) {
	cfg, p := u.container.Config, u.pod
	passwd, group, err := s.images.Files(ctx, img)
	if err != nil {
		return nil, err
	}
	for _, m := range cfg.GetMounts() {
		if err := s.makeHostPath(ctx, u, m.GetHostPath()); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
	}
	volumes, err := s.makeVolumes(ctx, u, img)
	if err != nil {
		return nil, err
	}
	mounted, err := s.volumes.mount(ctx, u)
	if err != nil {
		return nil, err
	}
	hooks, err := spec.LoadHooks(p.handler.Defaults.HooksDirs)
	if err != nil {
		return nil, err
	}
	target, err := s.targetPID(u)
	if err != nil {
		return nil, err
	}
	out, degraded, err := spec.ForContainer(s.host, spec.Container{
		ID:                           u.id,
		SandboxID:                    p.id,
		SandboxPID:                   p.now().Process.Pid,
		Pins:                         s.pinsOf(p),
		SandboxLabel:                 p.label(),
		TargetPID:                    target,
		Config:                       cfg,
		Sandbox:                      p.sandbox.Config,
		Image:                        img.Config,
		ImageName:                    u.imageName(),
		Passwd:                       passwd,
		Group:                        group,
		NetNS:                        p.sandbox.NetNS,
		Hostname:                     p.hostname(),
		Files:                        s.sharedFiles(p),
		Volumes:                      volumes,
		ImageVolumes:                 mounted,
		Devices:                      hostDevices,
		PrivilegedWithoutHostDevices: p.handler.PrivilegedWithoutHostDevices,
		SystemdCgroup:                p.handler.SystemdCgroup,
		HostProcess:                  p.handler.HostProcess,
		PodAnnotations:               p.handler.PodAnnotations,
		ContainerAnnotations:         p.handler.ContainerAnnotations,
		Profiles:                     s.profiles(p.handler),
		Base:                         p.handler.BaseSpec,
		Defaults:                     p.handler.Defaults,
		Hooks:                        hooks,
	})
	if err != nil {
		return nil, err
	}
	noteDegraded(s.obs, u, degraded)
	return out, s.relabel(cfg, volumes, out.Linux.MountLabel)
}

// sharedFiles returns the host path of each file that the containers of the sandbox p share:
// berth's own, or those of the runtime that it was adopted from.
func (s *specBuilder) sharedFiles(p *unit) map[string]string {
	if a := p.sandbox.Adopted; a != nil {
		return map[string]string{
			"/etc/hosts":       a.Shared.Hosts,
			"/etc/hostname":    a.Shared.Hostname,
			"/etc/resolv.conf": a.Shared.ResolvConf,
			"/dev/shm":         a.Shared.Shm,
		}
	}
	return s.files.Shared(p.id, hostIPC(p))
}

// hostPathPatience is how long the file system of a host path may take before an event reports it.
const hostPathPatience = 2 * time.Second

// makeHostPath makes the host directory of a mount. A file system that does not answer, because its
// server is away, is named while it is waited for.
func (s *specBuilder) makeHostPath(ctx context.Context, u *unit, path string) error {
	said := make(chan struct{})
	slow := time.AfterFunc(hostPathPatience, func() {
		defer close(said)
		s.obs.Note(u.id, event.HostPathSilent{Path: path})
	})
	err := s.files.MakeHostPath(ctx, path)
	if !slow.Stop() {
		<-said
	}
	return err
}

// relabel gives the container's volumes, and the host directories of mounts that ask for it, the
// SELinux label of the container's files.
func (s *specBuilder) relabel(cfg *runtimeapi.ContainerConfig, volumes map[string]string, label string) error {
	if s.labels == nil || label == "" {
		return nil
	}
	for dst, dir := range volumes {
		if err := s.labels.Relabel(dir, label); err != nil {
			return fmt.Errorf("make image volume %s: %w", dst, err)
		}
	}
	for _, m := range cfg.GetMounts() {
		if !m.GetSelinuxRelabel() || m.GetImage() != nil { // an image was mounted with its label
			continue
		}
		if err := s.labels.Relabel(m.GetHostPath(), label); err != nil {
			return fmt.Errorf("mount %s: relabel %s: %w", m.GetContainerPath(), m.GetHostPath(), err)
		}
	}
	return nil
}

// targetPID returns the process whose PID namespace u asks to join, if it asks for one; 0: that
// container does not run.
func (s *specBuilder) targetPID(u *unit) (uint32, error) {
	ns := u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return 0, nil
	}
	t, err := s.units.findContainer(ns.GetTargetId())
	if err != nil {
		return 0, err
	}
	if t.pod != u.pod {
		return 0, fmt.Errorf("target container %s is in another pod: %w", t.id, errdefs.ErrInvalidArgument)
	}
	return runningPID(t, t.now()), nil
}

// makeVolumes makes a host directory, with the image's content, for each of the image's volumes
// that the configuration mounts nothing at, unless the handler ignores them.
func (s *specBuilder) makeVolumes(ctx context.Context, u *unit, img Image) (map[string]string, error) {
	if u.pod.handler.Defaults.IgnoreImageVolumes {
		return nil, nil
	}
	mounted := map[string]bool{}
	for _, m := range u.container.Config.GetMounts() {
		mounted[filepath.Clean("/"+m.GetContainerPath())] = true
	}
	made := map[string]string{}
	for v := range img.Config.Volumes {
		dst := filepath.Clean("/" + v)
		if mounted[dst] || dst == "/" {
			continue
		}
		if len(made) == maxVolumes {
			return nil, fmt.Errorf("the image has more than %d volumes: %w", maxVolumes, errdefs.ErrInvalidArgument)
		}
		dir, err := s.files.MakeVolume(u.id, len(made))
		if err != nil {
			return nil, fmt.Errorf("make image volume %s: %w", v, err)
		}
		made[dst] = dir
	}
	if len(made) == 0 {
		return made, nil
	}
	if err := s.images.CopyOut(ctx, img, made); err != nil {
		return nil, fmt.Errorf("make the volumes of the image: %w", err)
	}
	return made, nil
}

// maxVolumes bounds how many volumes an image may have. Each is a mount of each of its containers.
const maxVolumes = 256

// loadSeccomp reads a seccomp profile of this host. The path comes from the kubelet, and so from
// the node's own profiles: links in it are the administrator's, and are followed. The file that is
// checked is the file that is read, even if the path is replaced meanwhile.
func loadSeccomp(path string) (*oci.LinuxSeccomp, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("path is not absolute: %w", errdefs.ErrInvalidArgument)
	}
	b, err := inroot.ReadGiven(path, spec.MaxSeccomp)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return spec.ParseSeccomp(b, runtime.GOARCH)
}

// pinsOf returns where the containers of the sandbox u find its namespaces; nil: its process has
// them.
func (s *specBuilder) pinsOf(u *unit) *spec.Pins {
	if !u.isPinned() {
		return nil
	}
	return &spec.Pins{IPC: s.pins.IPC(u.id), UTS: s.pins.UTS(u.id)}
}
