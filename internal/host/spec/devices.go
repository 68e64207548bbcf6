// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxDevices is how many device nodes one container may ask for; a directory of devices counts as
// many as it has.
const MaxDevices = 1024

func denyDevices() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
}

// devices gives a privileged container the devices of the host, and any other one those that its
// configuration names.
func devices(h Host, s *specs.Spec, in Container) error {
	if in.Config.GetLinux().GetSecurityContext().GetPrivileged() && !in.PrivilegedWithoutHostDevices {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		for _, d := range h.Devices() {
			addDevice(s, d, d.Path)
		}
		return nil
	}
	s.Linux.Resources.Devices = denyDevices()
	sec := in.Config.GetLinux().GetSecurityContext()
	if sec.GetPrivileged() && in.Defaults.AllDevices {
		s.Linux.Resources.Devices[0].Allow = true
	}
	for _, want := range in.Config.GetDevices() {
		if err := checkDevice(want); err != nil {
			return err
		}
		found, err := in.Devices(want.GetHostPath())
		if err != nil {
			return fmt.Errorf("device %s: %w", want.GetHostPath(), err)
		}
		if len(s.Linux.Devices)+len(found) > MaxDevices {
			return fmt.Errorf("devices: more than %d device nodes: %w", MaxDevices, errdefs.ErrInvalidArgument)
		}
		for _, d := range found {
			if uid, gid := sec.GetRunAsUser().GetValue(), sec.GetRunAsGroup().GetValue(); in.Defaults.DeviceOwnership {
				d.UID, d.GID = cmp.Or(uint32(uid), d.UID), cmp.Or(uint32(gid), d.GID)
			}
			addDevice(s, d, path.Join(want.GetContainerPath(), strings.TrimPrefix(d.Path, want.GetHostPath())))
			major, minor := d.Major, d.Minor
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow:  true,
				Type:   d.Type,
				Major:  &major,
				Minor:  &minor,
				Access: want.GetPermissions(),
			})
		}
	}
	return nil
}

// checkDevice refuses paths that leave the container's root and permissions that the device cgroup
// does not know.
func checkDevice(d *runtimeapi.Device) error {
	dst := d.GetContainerPath()
	if !path.IsAbs(dst) || strings.Contains(dst, "\x00") || slices.Contains(strings.Split(dst, "/"), "..") {
		return fmt.Errorf("device %s: container_path %q is not an absolute path within the container: %w",
			d.GetHostPath(), dst, errdefs.ErrInvalidArgument)
	}
	if !path.IsAbs(d.GetHostPath()) {
		return fmt.Errorf("device: host_path %q is not absolute: %w", d.GetHostPath(), errdefs.ErrInvalidArgument)
	}
	if p := d.GetPermissions(); p == "" || strings.Trim(p, "rwm") != "" {
		return fmt.Errorf("device %s: permissions %q are not some of r, w and m: %w", d.GetHostPath(), p, errdefs.ErrInvalidArgument)
	}
	return nil
}

func addDevice(s *specs.Spec, d Device, dst string) {
	mode := os.FileMode(d.Mode)
	uid, gid := d.UID, d.GID
	s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
		Path:     dst,
		Type:     d.Type,
		Major:    d.Major,
		Minor:    d.Minor,
		FileMode: &mode,
		UID:      &uid,
		GID:      &gid,
	})
}
