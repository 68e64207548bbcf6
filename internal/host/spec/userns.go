// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const usernsField = "namespace_options.userns_options"

// UserIDs are the IDs of this host that the users and groups of a pod's user namespace stand for.
type UserIDs struct {
	UID, GID   uint32 // of the pod's root
	UIDs, GIDs uint32 // how many IDs there are, from 0 on
}

// UserNamespace returns the IDs of a pod that asks for a user namespace of its own. It is false for
// a pod in the host's.
func UserNamespace(cfg *runtimeapi.PodSandboxConfig) (UserIDs, bool) {
	u := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if u == nil || u.GetMode() != inPod || len(u.GetUids()) == 0 || len(u.GetGids()) == 0 {
		return UserIDs{}, false
	}
	return idsOf(u.GetUids(), u.GetGids()), true
}

// idsOf returns the IDs of the host in mappings that checkMapping has accepted.
func idsOf(uids, gids []*runtimeapi.IDMapping) UserIDs {
	return UserIDs{
		UID:  uids[0].GetHostId(),
		GID:  gids[0].GetHostId(),
		UIDs: uids[0].GetLength(),
		GIDs: gids[0].GetLength(),
	}
}

// mappings returns the IDs as an OCI specification has them.
func (i UserIDs) mappings() (uids, gids []specs.LinuxIDMapping) {
	return []specs.LinuxIDMapping{{HostID: i.UID, Size: i.UIDs}}, []specs.LinuxIDMapping{{HostID: i.GID, Size: i.GIDs}}
}

// checkUserNamespace refuses a user namespace that would not be as it was asked for. Older kubelets
// send no options at all, and expect the host's user namespace.
func checkUserNamespace(ns *runtimeapi.NamespaceOption) error {
	u := ns.GetUsernsOptions()
	switch ids := len(u.GetUids()) + len(u.GetGids()); {
	case u == nil, u.GetMode() == onNode && ids == 0:
		return nil
	case u.GetMode() == onNode:
		return fmt.Errorf("%s: mode NODE does not take uids and gids: %w", usernsField, errdefs.ErrInvalidArgument)
	case u.GetMode() != inPod:
		return fmt.Errorf("%s: mode %s is not POD or NODE: %w", usernsField, u.GetMode(), errdefs.ErrInvalidArgument)
	}
	for field, list := range map[string][]*runtimeapi.IDMapping{"uids": u.GetUids(), "gids": u.GetGids()} {
		if err := checkMapping(list); err != nil {
			return fmt.Errorf("%s.%s: %w", usernsField, field, err)
		}
	}
	// File systems of the host's namespaces cannot be mounted in another user namespace: /proc of
	// the host's PID namespace, and /dev/mqueue of its IPC namespace.
	if ns.GetPid() == onNode || ns.GetIpc() == onNode {
		return fmt.Errorf("%s: mode POD needs PID and IPC namespaces that are not the host's: %w", usernsField, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkMapping refuses mappings of IDs that are not one range, from 0 in the container on.
func checkMapping(list []*runtimeapi.IDMapping) error {
	if len(list) != 1 {
		return fmt.Errorf("there are %d mappings; exactly one is supported: %w", len(list), errdefs.ErrInvalidArgument)
	}
	m := list[0]
	switch {
	case m.GetContainerId() != 0:
		return fmt.Errorf("the mapping begins at ID %d of the container; it has to begin at 0: %w", m.GetContainerId(), errdefs.ErrInvalidArgument)
	case m.GetLength() == 0:
		return fmt.Errorf("the mapping is empty: %w", errdefs.ErrInvalidArgument)
	case uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32: // the last ID means "none"
		return fmt.Errorf("%d IDs from %d on are more than there are: %w", m.GetLength(), m.GetHostId(), errdefs.ErrInvalidArgument)
	}
	return nil
}

// sameUserNamespace refuses a container that asks for another user namespace than its pod's.
func sameUserNamespace(container, pod *runtimeapi.UserNamespace) error {
	none := func(u *runtimeapi.UserNamespace) bool { return u == nil || u.GetMode() == onNode }
	if none(container) && none(pod) || proto.Equal(container, pod) {
		return nil
	}
	return fmt.Errorf("%s: they differ from those of the pod: %w", usernsField, errdefs.ErrInvalidArgument)
}

// inUserNamespace puts a container into the user namespace of its pod.
func inUserNamespace(s *specs.Spec, in Container) error {
	ids, ok := UserNamespace(in.Sandbox)
	if !ok {
		return nil
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{
		Type: specs.UserNamespace,
		Path: fmt.Sprintf("/proc/%d/ns/user", in.SandboxPID),
	})
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids.mappings()
	u := s.Process.User
	if u.UID >= ids.UIDs {
		return fmt.Errorf("run_as_user: %d is not one of the %d users of the pod's user namespace: %w", u.UID, ids.UIDs, errdefs.ErrInvalidArgument)
	}
	for _, g := range append([]uint32{u.GID}, u.AdditionalGids...) {
		if g >= ids.GIDs {
			return fmt.Errorf("group %d is not one of the %d groups of the pod's user namespace: %w", g, ids.GIDs, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// userRlimits drops the resource limits of a process in a user namespace if this process may not
// set them: CAP_SYS_RESOURCE is needed for another user's process (prlimit(2)), even to lower a
// limit.
func userRlimits(h Host, s *specs.Spec) []Degraded {
	if len(s.Linux.UIDMappings) == 0 || h.MaxRlimits == nil {
		return nil
	}
	s.Process.Rlimits = nil
	return []Degraded{{
		What: "resource limits",
		Why:  "setting them in a user namespace needs CAP_SYS_RESOURCE, which this berth lacks; berth's own are used",
	}}
}

// hostSys takes the place of a sysfs of the container's own: the kernel mounts one only for the
// owner of the network namespace.
func hostSys() specs.Mount {
	return specs.Mount{
		Destination: "/sys",
		Type:        "bind",
		Source:      "/sys",
		Options:     []string{"rbind", "rro", "nosuid", "nodev", "noexec"},
	}
}

// mapMount maps the owners of the files that a mount shows. Without mappings they are the owners on
// the host, which a pod in a user namespace of its own sees as nobody.
func mapMount(om *specs.Mount, m *runtimeapi.Mount, userNamespace bool) error {
	if len(m.GetUidMappings())+len(m.GetGidMappings()) == 0 {
		return nil
	}
	if !userNamespace {
		return fmt.Errorf("mount %s: uidMappings and gidMappings need a pod with a user namespace of its own: %w",
			om.Destination, errdefs.ErrInvalidArgument)
	}
	if m.GetImage() != nil {
		return nil // its view has the owners of the pod
	}
	for field, list := range map[string][]*runtimeapi.IDMapping{"uidMappings": m.GetUidMappings(), "gidMappings": m.GetGidMappings()} {
		if err := checkMapping(list); err != nil {
			return fmt.Errorf("mount %s: %s: %w", om.Destination, field, err)
		}
	}
	om.UIDMappings, om.GIDMappings = idsOf(m.GetUidMappings(), m.GetGidMappings()).mappings()
	return nil
}
