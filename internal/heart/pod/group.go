// SPDX-License-Identifier: Apache-2.0

package pod

import "berth/internal/host/spec"

// askedGroup returns the cgroup that the runtime was asked to make for u.
func askedGroup(cgroups Cgroups, u *unit) string {
	path, err := spec.CgroupDir(u.handler.SystemdCgroup, u.pod.sandbox.Config.GetLinux().GetCgroupParent(), u.id)
	if err != nil {
		return "" // a container is not made with such a parent
	}
	return cgroups.Dir(path)
}

// restoredGroup returns the cgroup of the process that the shim was asked to restore for u, or ""
// if the record has its process or no restore was begun.
func restoredGroup(cgroups Cgroups, u *unit) string {
	if u.now().Restoring == "" {
		return ""
	}
	return askedGroup(cgroups, u)
}

// ownsGroup reports whether the group above that of u belongs to its pod alone, as the kubelet
// makes it.
func (u *unit) ownsGroup() bool { return u.pod.sandbox.Config.GetLinux().GetCgroupParent() != "" }
