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

func defaultMasked() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

func defaultReadonly() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func defaultMounts(h Host, privileged bool) []specs.Mount {
	mode := "ro"
	if privileged {
		mode = "rw"
	}
	cgroup := specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", mode}}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", mode}},
		cgroup,
	}
}

// mounts puts together the defaults, the pod's own files, the image's volumes and what was asked for; the later
// ones take the place of earlier ones at the same destination, parents come before children.
func mounts(h Host, s *specs.Spec, in Container) error {
	cfg := in.Config
	privileged := cfg.GetLinux().GetSecurityContext().GetPrivileged()
	all := defaultMounts(h, privileged)
	taken := map[string]bool{}
	var asked []specs.Mount
	for _, m := range cfg.GetMounts() {
		om, err := mountOf(m)
		if err != nil {
			return fmt.Errorf("container %s: %w", cfg.GetMetadata().GetName(), err)
		}
		if m.GetReadonly() && m.GetRecursiveReadOnly() {
			om.Options = append(om.Options, "rro")
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
	ro := "rw"
	if cfg.GetLinux().GetSecurityContext().GetReadonlyRootfs() {
		ro = "ro"
	}
	for dst, src := range in.Files {
		if taken[dst] {
			continue
		}
		opt := []string{"rbind", "rprivate", ro}
		if dst == "/dev/shm" {
			opt = []string{"rbind", "rprivate", "rw"}
		}
		asked = append(asked, specs.Mount{Destination: dst, Type: "bind", Source: src, Options: opt})
	}
	for dst, src := range in.Volumes {
		if !taken[dst] {
			asked = append(asked, specs.Mount{Destination: dst, Type: "bind", Source: src, Options: []string{"rbind", "rprivate", "rw"}})
		}
	}
	slices.SortStableFunc(asked, func(a, b specs.Mount) int {
		return cmp.Or(cmp.Compare(strings.Count(path.Clean(a.Destination), "/"), strings.Count(path.Clean(b.Destination), "/")), cmp.Compare(a.Destination, b.Destination))
	})
	all = slices.DeleteFunc(all, func(m specs.Mount) bool { return taken[m.Destination] })
	s.Mounts = slices.Concat(all, asked)
	return nil
}

func mountOf(m *runtimeapi.Mount) (specs.Mount, error) {
	dst := m.GetContainerPath()
	if m.GetImage().GetImage() != "" {
		return specs.Mount{}, fmt.Errorf("mount %s: images as volumes are not supported by this berth yet: %w", dst, errdefs.ErrNotImplemented)
	}
	if dst == "" || strings.Contains(dst, "\x00") || slices.Contains(strings.Split(dst, "/"), "..") {
		return specs.Mount{}, fmt.Errorf("mount: container path %q is not one: %w", dst, errdefs.ErrInvalidArgument)
	}
	if !path.IsAbs(dst) {
		dst = "/" + dst
	}
	if !path.IsAbs(m.GetHostPath()) {
		return specs.Mount{}, fmt.Errorf("mount %s: host path %q is not absolute: %w", dst, m.GetHostPath(), errdefs.ErrInvalidArgument)
	}
	if m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE) {
		return specs.Mount{}, fmt.Errorf("mount %s: recursive_read_only needs readonly and private propagation: %w", dst, errdefs.ErrInvalidArgument)
	}
	opts := []string{"rbind"}
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		opts = append(opts, "rshared")
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		opts = append(opts, "rslave")
	default:
		opts = append(opts, "rprivate")
	}
	if m.GetReadonly() {
		opts = append(opts, "ro")
	} else {
		opts = append(opts, "rw")
	}
	return specs.Mount{Destination: path.Clean(dst), Type: "bind", Source: m.GetHostPath(), Options: opts}, nil
}
