// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// groupView is how a container sees control groups.
type groupView struct {
	hidden bool // it has a cgroup namespace of its own, which hides the paths of the host's groups
	// mode is ro or rw if the request names it, and "" for the default.
	mode string
}

// checkGroups refuses a request about control groups that no host can honour.
func checkGroups(sec *runtimeapi.LinuxContainerSecurityContext) error {
	_, err := askedGroups(sec)
	return err
}

// refuseSandboxGroups refuses a cgroup namespace of a pod, which each container has of its own.
func refuseSandboxGroups(ns *runtimeapi.NamespaceOption) error {
	opts, err := cri138.Of[cri138.NamespaceOption](ns)
	if err != nil {
		return fmt.Errorf("namespace_options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if opts.GetCgroupnsOptions() != nil {
		return fmt.Errorf("namespace_options.cgroupns_options: it is for containers, and not for a sandbox: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// askedGroups returns the new fields of a request about control groups.
func askedGroups(sec *runtimeapi.LinuxContainerSecurityContext) (asked struct {
	namespace *cri138.CgroupNamespace // nil: the default
	mount     cri138.CgroupMountMode
}, err error) {
	own, err := cri138.Of[cri138.LinuxContainerSecurityContext](sec)
	if err != nil {
		return asked, fmt.Errorf("security_context: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	opts, err := cri138.Of[cri138.NamespaceOption](sec.GetNamespaceOptions())
	if err != nil {
		return asked, fmt.Errorf("namespace_options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	asked.mount, asked.namespace = own.GetCgroupMountMode(), opts.GetCgroupnsOptions()
	mode := asked.namespace.GetMode()
	switch {
	case asked.namespace != nil && mode != inContainer && mode != onNode:
		return asked, fmt.Errorf("namespace_options.cgroupns_options.mode: %s is not CONTAINER or NODE: %w", mode, errdefs.ErrInvalidArgument)
	case cri138.CgroupMountMode_name[int32(asked.mount)] == "":
		return asked, fmt.Errorf("cgroup_mount_mode: %d is not known: %w", asked.mount, errdefs.ErrInvalidArgument)
	case asked.mount == cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY && sec.GetPrivileged():
		return asked, fmt.Errorf("cgroup_mount_mode: the control groups of a privileged container are writable: %w", errdefs.ErrInvalidArgument)
	case asked.mount == cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE && asked.namespace != nil && mode == onNode && !sec.GetPrivileged():
		return asked, fmt.Errorf("cgroup_mount_mode: a container in the host's cgroup namespace (cgroupns_options NODE) can have its control groups writable only if it is privileged: %w",
			errdefs.ErrInvalidArgument)
	}
	return asked, nil
}

// OwnsGroup reports whether a container has its own control group, writable, because it asks for
// that or by default. Its group is to belong to its user. Of the input the configurations, the kind
// of the handler and its defaults count.
func OwnsGroup(h Host, in Container) bool {
	view, _, err := viewGroups(h, in)
	return err == nil && view.hidden && view.mode == "rw"
}

// viewGroups returns how a container sees control groups on this host. By default a container that
// is not privileged has a cgroup namespace with cgroup v2, and none with cgroup v1, whose
// controllers are mounted from the host's tree. They are writable by default if it is privileged,
// or if the defaults of its handler say so and this host can.
func viewGroups(h Host, in Container) (view groupView, degraded []Degraded, err error) {
	sec := in.Config.GetLinux().GetSecurityContext()
	asked, err := askedGroups(sec)
	if err != nil {
		return groupView{}, nil, err
	}
	view.hidden = h.CgroupV2 && !sec.GetPrivileged()
	if asked.namespace != nil {
		if !in.HostProcess {
			return groupView{}, nil, fmt.Errorf("namespace_options.cgroupns_options: the runtime handler runs containers outside of this host's control groups: %w", errdefs.ErrFailedPrecondition)
		}
		view.hidden = asked.namespace.GetMode() == inContainer
	}
	switch asked.mount {
	case cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY:
		view.mode = "ro"
	case cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE:
		if err := mayOwnGroups(h, in); err != nil {
			return groupView{}, nil, fmt.Errorf("cgroup_mount_mode: control groups cannot be writable: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		view.mode = "rw"
	default:
		by := in.Defaults.Groups.of(in.Config, in.Sandbox)
		err := mayOwnGroups(h, in)
		switch {
		case by == "" || h.CgroupV2 && !view.hidden: // nobody gets the host's own groups by default
		case err == nil:
			view.mode = "rw"
		case by != "userns": // which is for hosts where it is safe
			degraded = []Degraded{{What: "writable control group (cgroup_writable)", Why: err.Error()}}
		}
	}
	return view, degraded, nil
}

// mayOwnGroups returns nil if containers of a handler may have their own control groups writable.
func mayOwnGroups(h Host, in Container) error {
	switch {
	case !in.HostProcess:
		return errors.New("the runtime handler runs containers outside of this host's control groups")
	case h.GroupsDelegated != nil:
		return h.GroupsDelegated()
	}
	return nil
}

// mount applies the view to the mounts of control groups among all.
func (v groupView) mount(h Host, in Container, all []specs.Mount) []specs.Mount {
	if v.mode != "" {
		all = slices.Clone(all)
		for i, m := range all {
			if isGroups(m) {
				all[i].Options = append(slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "ro" || o == "rw" }), v.mode)
			}
		}
	}
	if in.HostProcess && h.CgroupV2 && !v.hidden {
		all = hostGroups(all)
	}
	return all
}

func isGroups(m specs.Mount) bool { return m.Type == "cgroup" || m.Type == "cgroup2" }

// hostGroups turns each mount of the unified hierarchy into a bind mount of the host's. A new mount
// of the file system in the host's cgroup namespace would be the same mount as the host's and so
// change its options: without nsdelegate and memory_recursiveprot, the node's memory protection is
// off (cgroups(7), "Mount Options" of the kernel's cgroup-v2). The other kernel file systems that a
// container mounts either are new ones each time (devpts, tmpfs, proc since Linux 5.8) or take no
// options (sysfs, mqueue), and on cgroup v1 a mount does not change an existing hierarchy.
func hostGroups(all []specs.Mount) []specs.Mount {
	all = slices.Clone(all)
	for i, m := range all {
		if isGroups(m) {
			all[i].Type, all[i].Source = "bind", cgroupRoot
			all[i].Options = append([]string{"bind", "rprivate"}, m.Options...)
		}
	}
	return all
}

// groupsDelegated returns nil if a container that is not privileged may have its own control group
// writable on this host, now. Without nsdelegate the kernel lets a container change its own limits,
// and move processes out of its group ("Model of Delegation" of the kernel's cgroup-v2). An
// administrator may mount the hierarchy with other options at any time.
func groupsDelegated() error {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(cgroupRoot))
	switch {
	case err != nil:
		return fmt.Errorf("read the mount options of %s: %w", cgroupRoot, err)
	case len(found) == 0:
		return fmt.Errorf("%s is not a mount", cgroupRoot)
	}
	return delegates(found[len(found)-1]) // the one that hides the others
}

// delegates is groupsDelegated for the mount of the control groups.
func delegates(m *mountinfo.Info) error {
	options := strings.Split(m.VFSOptions, ",")
	switch {
	case m.FSType != "cgroup2":
		return fmt.Errorf("the host has cgroup v1 at %s, which cannot be delegated safely; boot it with cgroup v2 (systemd.unified_cgroup_hierarchy=1)", cgroupRoot)
	case !slices.Contains(options, "nsdelegate"):
		keep := slices.DeleteFunc(options, func(o string) bool { return o == "ro" || o == "rw" || o == "" })
		return fmt.Errorf("cgroup v2 is mounted at %s without nsdelegate; run `mount -o remount,%s %s` on the node",
			cgroupRoot, strings.Join(append(keep, "nsdelegate"), ","), cgroupRoot)
	}
	return nil
}
