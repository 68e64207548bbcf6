// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func has(s *specs.Spec, t specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == t })
}

// With cgroup v2 a container without a cgroup namespace reads the paths of the host's cgroups.
func TestAContainerHasACgroupNamespaceOnCgroupV2(t *testing.T) {
	in := input()
	h := host()
	if s := make1(t, in); has(s, specs.CgroupNamespace) {
		t.Error("cgroup v1: the controllers are mounted as a tree of the host's, the namespace would hide them")
	}
	h.CgroupV2 = true
	s, _, err := ForContainer(h, in)
	if err != nil || !has(s, specs.CgroupNamespace) {
		t.Errorf("cgroup v2: none (%v)", err)
	}
	in.Sandbox.Linux.SecurityContext.Privileged = true
	sec(&in).Privileged = true
	s, _, err = ForContainer(h, in)
	if err != nil || has(s, specs.CgroupNamespace) {
		t.Errorf("privileged: it has one (%v)", err)
	}
}

// PROPERTIES 55: the first privileged pod took the options of the unified hierarchy from the host. In
// the host's cgroup namespace a container mounts nothing that the host has mounted, too, since options
// of its own, or none, would be the host's from then on.
func TestAContainerDoesNotChangeTheHostsMounts(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		in := input()
		in.HostProcess = true
		in.Sandbox.Linux.SecurityContext.Privileged = privileged
		sec(&in).Privileged = privileged
		in.Base = &specs.Spec{Mounts: []specs.Mount{{Destination: "/groups", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}}}}
		h := host()
		h.CgroupV2 = true
		s, _, err := ForContainer(h, in)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, m := range s.Mounts {
			if m.Destination != "/sys/fs/cgroup" && m.Destination != "/groups" {
				continue
			}
			seen++
			bound := m.Type == "bind" && m.Source == "/sys/fs/cgroup" && m.Options[0] == "bind"
			if bound != privileged {
				t.Errorf("privileged %v: %+v", privileged, m)
			}
			if mode := m.Options[len(m.Options)-1]; mode != "ro" && (m.Destination == "/groups" || !privileged) {
				t.Errorf("privileged %v: %+v is not read-only", privileged, m)
			}
		}
		if seen != 2 {
			t.Errorf("%d mounts of control groups", seen)
		}
		// These are other file systems in each container, or have no options.
		for _, m := range s.Mounts {
			switch m.Type {
			case "proc", "tmpfs", "devpts", "mqueue", "sysfs", "bind":
			case "cgroup":
				if privileged {
					t.Errorf("%+v", m)
				}
			default:
				t.Errorf("%+v: find out whether a mount of it changes the host's", m)
			}
		}
	}
}

// A container of a pod with namespaces of its own got the host's by asking for them.
func TestTheHostsNamespacesAreForPodsThatHaveThem(t *testing.T) {
	const node = runtimeapi.NamespaceMode_NODE
	for _, tt := range []struct {
		field string
		opts  *runtimeapi.NamespaceOption
	}{
		{"network", &runtimeapi.NamespaceOption{Network: node}},
		{"pid", &runtimeapi.NamespaceOption{Pid: node}},
		{"ipc", &runtimeapi.NamespaceOption{Ipc: node}},
	} {
		in := input()
		sec(&in).NamespaceOptions = tt.opts
		_, _, err := ForContainer(host(), in)
		refused(t, tt.field, err)
		if err != nil && !strings.Contains(err.Error(), "namespace_options."+tt.field) {
			t.Errorf("the error does not name the field %s: %v", tt.field, err)
		}
		in.Sandbox.Linux.SecurityContext.NamespaceOptions = tt.opts
		if tt.field == "network" {
			in.NetNS = ""
		}
		if _, _, err := ForContainer(host(), in); err != nil {
			t.Errorf("%s of a pod that has the host's: %v", tt.field, err)
		}
	}
}

func TestModesThatMakeNoSenseAreRefused(t *testing.T) {
	for _, opts := range []*runtimeapi.NamespaceOption{
		{Network: runtimeapi.NamespaceMode_CONTAINER},
		{Network: runtimeapi.NamespaceMode_TARGET},
		{Ipc: runtimeapi.NamespaceMode_CONTAINER},
		{Ipc: runtimeapi.NamespaceMode_TARGET},
		{Pid: 17},
	} {
		in := input()
		sec(&in).NamespaceOptions = opts
		_, _, err := ForContainer(host(), in)
		refused(t, "container: "+opts.String(), err)
		_, _, err = ForSandbox(host(), sandboxWith(opts))
		refused(t, "sandbox: "+opts.String(), err)
	}
	_, _, err := ForSandbox(host(), sandboxWith(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET}))
	refused(t, "sandbox: PID of another container", err)
}

func sandboxWith(opts *runtimeapi.NamespaceOption) Sandbox {
	return Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: opts},
	}}}
}

// A pod that asks for a user namespace does not silently run without one.
func TestAUserNamespaceIsGivenOrRefused(t *testing.T) {
	user := func(u *runtimeapi.UserNamespace) error {
		_, _, err := ForSandbox(host(), sandboxWith(&runtimeapi.NamespaceOption{UsernsOptions: u}))
		return err
	}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
	if err := user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}); err != nil {
		t.Errorf("the host's: %v", err)
	}
	if err := user(nil); err != nil {
		t.Errorf("an older kubelet: %v", err)
	}
	refused(t, "POD without IDs", user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}))
	refused(t, "POD with user IDs alone", user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids}))
	refused(t, "NODE with IDs", user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE, Uids: ids, Gids: ids}))
	refused(t, "TARGET", user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_TARGET}))
	for _, bad := range [][]*runtimeapi.IDMapping{
		{{HostId: 1, Length: 1}, {HostId: 2, Length: 1}},
		{{ContainerId: 1, HostId: 1, Length: 1}},
		{{HostId: 1}},
		{{HostId: 1<<32 - 1, Length: 1}},
	} {
		refused(t, fmt.Sprint("users ", bad), user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: bad, Gids: ids}))
		refused(t, fmt.Sprint("groups ", bad), user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: bad}))
	}
	if err := user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}); err != nil {
		t.Error(err)
	}
}

// inUserns is a container of a pod in a user namespace.
func inUserns(users, groups uint32) Container {
	in := input()
	opts := &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{
		Uids: []*runtimeapi.IDMapping{{HostId: 65536, Length: users}},
		Gids: []*runtimeapi.IDMapping{{HostId: 131072, Length: groups}},
	}}
	sec(&in).NamespaceOptions = opts
	in.Sandbox.Linux.SecurityContext.NamespaceOptions = opts
	return in
}

func TestAContainerIsInTheUserNamespaceOfItsPod(t *testing.T) {
	in := inUserns(65536, 2000)
	in.Volumes = map[string]string{"/data": "/volumes/0"}
	in.Config.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/plain", HostPath: "/plain"},
		{
			ContainerPath: "/mapped",
			HostPath:      "/mapped",
			UidMappings:   []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}},
			GidMappings:   []*runtimeapi.IDMapping{{HostId: 131072, Length: 2000}},
		},
	}
	s := make1(t, in)
	uids, gids := []specs.LinuxIDMapping{{HostID: 65536, Size: 65536}}, []specs.LinuxIDMapping{{HostID: 131072, Size: 2000}}
	if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/7/ns/user"}) ||
		!slices.Equal(s.Linux.UIDMappings, uids) || !slices.Equal(s.Linux.GIDMappings, gids) {
		t.Errorf("%+v", s.Linux)
	}
	for _, m := range s.Mounts {
		mapped := m.Destination == "/data" || m.Destination == "/mapped"
		if mapped && (!slices.Equal(m.UIDMappings, uids) || !slices.Equal(m.GIDMappings, gids)) || !mapped && m.UIDMappings != nil {
			t.Errorf("%+v", m)
		}
		if m.Destination == "/sys" && m.Type != "sysfs" {
			t.Errorf("%+v", m)
		}
	}
	in.NetNS = "" // the kernel mounts no sysfs for whoever does not own the network
	for _, m := range make1(t, in).Mounts {
		if m.Destination == "/sys" && (m.Type != "bind" || !slices.Contains(m.Options, "rro")) {
			t.Errorf("%+v", m)
		}
	}
}

func TestIDsThatTheUserNamespaceDoesNotHaveAreRefused(t *testing.T) {
	refuse := func(what string, change func(in *Container)) {
		t.Helper()
		in := inUserns(1000, 1001)
		change(&in)
		_, _, err := ForContainer(host(), in)
		refused(t, what, err)
	}
	refuse("user", func(in *Container) { sec(in).RunAsUser = &runtimeapi.Int64Value{Value: 1000} })
	refuse("group", func(in *Container) {
		sec(in).RunAsUser, sec(in).RunAsGroup = &runtimeapi.Int64Value{Value: 1}, &runtimeapi.Int64Value{Value: 1001}
	})
	refuse("supplemental group", func(in *Container) { sec(in).SupplementalGroups = []int64{1001} })
	refuse("another user namespace", func(in *Container) {
		sec(in).NamespaceOptions = &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}}
	})
	ids := []*runtimeapi.IDMapping{{HostId: 1, Length: 1}}
	refuse("a mapping of users alone", func(in *Container) {
		in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: "/x", UidMappings: ids}}
	})
	refuse("a mapping without a user namespace", func(in *Container) {
		*in = input()
		in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: "/x", UidMappings: ids, GidMappings: ids}}
	})
}

// Setting the limits of another user's process needs a capability that berth may lack: the pod
// could not start at all.
func TestResourceLimitsInAUserNamespaceNeedACapability(t *testing.T) {
	for _, able := range []bool{true, false} {
		h := host()
		if !able {
			h.MaxRlimits = map[string]uint64{"RLIMIT_CORE": 1}
		}
		s, degraded, err := ForContainer(h, inUserns(1000, 1001))
		if err != nil || len(s.Process.Rlimits) > 0 != able || len(degraded) > 0 == able {
			t.Errorf("able %v: %v %v %v", able, s.Process.Rlimits, degraded, err)
		}
	}
}

func TestTheSandboxJoinsTheOwnerOfItsNetwork(t *testing.T) {
	in := inUserns(1000, 1001)
	s, _, err := ForSandbox(host(), Sandbox{ID: "p1", Config: in.Sandbox, NetNS: "/run/netns/p1", UserNS: "/owner"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/owner"}) || s.Linux.UIDMappings[0].HostID != 65536 {
		t.Errorf("%+v", s.Linux)
	}
	if u := s.Process.User; u.UID != 999 || u.GID != 1000 {
		t.Errorf("the pause process runs as %+v", u)
	}
}

// On the host's network a pod has the host's UTS namespace: a hostname of its own was dropped
// without a word. An OCI runtime, and so containerd's CRI, refuses it.
func TestAHostnameOnTheHostsNetworkIsRefused(t *testing.T) {
	in := sandboxWith(&runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE})
	if _, _, err := ForSandbox(host(), in); err != nil {
		t.Error(err)
	}
	in.Config.Hostname = "mine"
	_, _, err := ForSandbox(host(), in)
	refused(t, "hostname", err)
}

// PROPERTIES 31: the containers of a pod without a process join its namespaces by their paths, and
// no PID namespace: there is none to share.
func TestContainersJoinTheNamespacesOfAPodWithoutAProcess(t *testing.T) {
	const node, container = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_CONTAINER
	with := func(pod, c *runtimeapi.NamespaceOption) Container {
		in := input()
		in.SandboxPID, in.Pins = 0, &Pins{IPC: "/pins/ipc", UTS: "/pins/uts"}
		in.Sandbox.Linux.SecurityContext.NamespaceOptions, sec(&in).NamespaceOptions = pod, c
		if pod.GetNetwork() == node {
			in.NetNS = ""
		}
		return in
	}
	own := &runtimeapi.NamespaceOption{Pid: container}
	want := []specs.LinuxNamespace{
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: "/run/netns/x"},
		{Type: specs.UTSNamespace, Path: "/pins/uts"},
		{Type: specs.IPCNamespace, Path: "/pins/ipc"},
		{Type: specs.PIDNamespace},
	}
	if got := make1(t, with(own, own)).Linux.Namespaces; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	host := &runtimeapi.NamespaceOption{Network: node, Ipc: node, Pid: node}
	// A container that does not ask for the host's namespaces gets those of its pod all the same.
	for _, c := range []*runtimeapi.NamespaceOption{host, {}} {
		if got := make1(t, with(host, c)).Linux.Namespaces; !slices.Equal(got, want[:1]) {
			t.Errorf("%v: %v", c, got)
		}
	}
	// One that does not say that it wants a PID namespace of its own gets what its pod was asked
	// for.
	if got := make1(t, with(own, &runtimeapi.NamespaceOption{})).Linux.Namespaces; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for cfg, needs := range map[*runtimeapi.NamespaceOption]bool{own: false, host: false, {}: true} {
		if NeedsProcess(sandboxWith(cfg).Config) != needs {
			t.Errorf("%v: needs a process: %v", cfg, !needs)
		}
	}
}
