// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
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
	if err := user(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}); !errdefs.IsNotImplemented(err) {
		t.Errorf("POD with IDs: %v", err)
	}
	in := input()
	sec(&in).NamespaceOptions = &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}}
	if _, _, err := ForContainer(host(), in); !errdefs.IsNotImplemented(err) {
		t.Errorf("container: %v", err)
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
