// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultMasked returns the kernel's files that reveal other containers or act on the host.
func defaultMasked() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

func defaultReadonly() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// defaultMounts returns the file systems of the kernel that every container has. The first two are
// all that the pause process needs.
func defaultMounts(privileged bool) []specs.Mount {
	mode := "ro"
	if privileged {
		mode = "rw"
	}
	of := func(kind, dst string, options ...string) specs.Mount {
		return specs.Mount{Destination: dst, Type: kind, Source: kind, Options: options}
	}
	return []specs.Mount{
		of("proc", "/proc", "nosuid", "noexec", "nodev"),
		of("tmpfs", "/dev", "nosuid", "strictatime", "mode=755", "size=65536k"),
		of("devpts", "/dev/pts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
		of("mqueue", "/dev/mqueue", "nosuid", "noexec", "nodev"),
		of("sysfs", "/sys", "nosuid", "noexec", "nodev", mode),
		of("cgroup", "/sys/fs/cgroup", "nosuid", "noexec", "nodev", "relatime", mode),
	}
}

// mounts combines the default mounts, the pod's own files, the image's volumes and the mounts of
// the configuration. A later mount replaces an earlier one with the same destination, and parents
// come before children.
func mounts(h Host, s *specs.Spec, in Container, view groupView) error {
	cfg := in.Config
	sec := cfg.GetLinux().GetSecurityContext()
	all := withBase(defaultMounts(sec.GetPrivileged()), s.Mounts)
	ids, mapped := UserNamespace(in.Sandbox)
	if mapped && in.NetNS == "" {
		all = withBase(all, []specs.Mount{hostSys()})
	}
	all = view.mount(h, in, all)
	taken := map[string]bool{}
	var asked []specs.Mount
	for i, m := range cfg.GetMounts() {
		om, err := mountOf(m, in.ImageVolumes[i])
		if err != nil {
			return err
		}
		if m.GetRecursiveReadOnly() && !h.RecursiveReadOnly {
			return fmt.Errorf("mount %s: recursive_read_only: it needs Linux 5.12: %w", m.GetContainerPath(), errdefs.ErrFailedPrecondition)
		}
		if err := checkPropagation(h, m); err != nil {
			return err
		}
		if err := mapMount(&om, m, mapped); err != nil {
			return err
		}
		taken[om.Destination] = true
		asked = append(asked, om)
		switch m.GetPropagation() {
		case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			s.Linux.RootfsPropagation = "rshared"
		case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			if s.Linux.RootfsPropagation == "" {
				s.Linux.RootfsPropagation = "rslave"
			}
		}
	}
	for dst, src := range in.Files {
		if !taken[dst] {
			asked = append(asked, fileMount(dst, src, sec.GetReadonlyRootfs()))
		}
	}
	for dst, src := range in.Volumes {
		if !taken[dst] {
			volume := specs.Mount{
				Destination: dst,
				Type:        "bind",
				Source:      src,
				Options:     []string{"rbind", "rprivate", "nodev", "rw"},
			}
			if mapped { // its files have the owners that they have in the image
				volume.UIDMappings, volume.GIDMappings = ids.mappings()
			}
			asked = append(asked, volume)
		}
	}
	slices.SortStableFunc(asked, func(a, b specs.Mount) int {
		depth := func(m specs.Mount) int { return strings.Count(path.Clean(m.Destination), "/") }
		return cmp.Or(cmp.Compare(depth(a), depth(b)), cmp.Compare(a.Destination, b.Destination))
	})
	all = slices.DeleteFunc(all, func(m specs.Mount) bool { return taken[m.Destination] })
	s.Mounts = slices.Concat(all, asked)
	return nil
}

// fileMount mounts one of the pod's own files. They lie in a file system of the host's, on which a
// container must be able to make neither devices nor programs that change who runs them. A
// read-only root is read-only here, too; /dev/shm is memory of the pod's, and stays writable.
func fileMount(dst, src string, readonly bool) specs.Mount {
	mode := "rw"
	if readonly && dst != "/dev/shm" {
		mode = "ro"
	}
	return specs.Mount{
		Destination: dst,
		Type:        "bind",
		Source:      src,
		Options:     []string{"rbind", "rprivate", "nosuid", "nodev", "noexec", mode},
	}
}

// mountOf returns the OCI mount of a mount of the request. A destination with .. in it is refused
// rather than cleaned, because the cleaned path is probably not the intended one. image is the host
// directory of the image that the mount requests, if any.
func mountOf(m *runtimeapi.Mount, image string) (specs.Mount, error) {
	dst, src := m.GetContainerPath(), m.GetHostPath()
	if err := checkImageMount(m); err != nil {
		return specs.Mount{}, err
	}
	if m.GetImage() != nil {
		src = image
	}
	if dst == "" || strings.Contains(dst, "\x00") || slices.Contains(strings.Split(dst, "/"), "..") {
		return specs.Mount{}, fmt.Errorf("mount: container_path %q is not a path within the container: %w", dst, errdefs.ErrInvalidArgument)
	}
	if dst = path.Clean("/" + dst); dst == "/" {
		return specs.Mount{}, fmt.Errorf("mount: container_path / would hide the image: %w", errdefs.ErrInvalidArgument)
	}
	if !path.IsAbs(src) || strings.Contains(src, "\x00") {
		return specs.Mount{}, fmt.Errorf("mount %s: host_path %q is not absolute: %w", dst, src, errdefs.ErrInvalidArgument)
	}
	if m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE) {
		return specs.Mount{}, fmt.Errorf("mount %s: recursive_read_only needs readonly and private propagation: %w", dst, errdefs.ErrInvalidArgument)
	}
	opts := []string{"rbind"}
	if m.GetImage() != nil {
		opts = append(opts, "nosuid", "nodev")
	}
	switch p := m.GetPropagation(); p {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		opts = append(opts, "rshared")
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		opts = append(opts, "rslave")
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		opts = append(opts, "rprivate")
	default:
		return specs.Mount{}, fmt.Errorf("mount %s: propagation %d is not known: %w", dst, p, errdefs.ErrInvalidArgument)
	}
	if m.GetReadonly() {
		opts = append(opts, "ro")
	} else {
		opts = append(opts, "rw")
	}
	if m.GetRecursiveReadOnly() {
		opts = append(opts, "rro")
	}
	opts = append(opts, m.GetMountOptions()...)
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: opts}, nil
}
