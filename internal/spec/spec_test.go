// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The pause program is native, and reads no file system of the kernel's.
func TestTheSandboxGetsWhatItNeeds(t *testing.T) {
	h := host()
	h.Seccomp = true
	cfg := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		Sysctls: map[string]string{"net/ipv4/ping_group_range": "1 1"},
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		},
	}}
	s, _, err := ForSandbox(h, Sandbox{ID: "p1", Config: cfg, NetNS: "/run/netns/p1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Linux.Seccomp.Architectures) != 1 || len(s.Mounts) != 2 {
		t.Errorf("architectures %v, mounts %v", s.Linux.Seccomp.Architectures, s.Mounts)
	}
	// Low ports and ping are free in a network of its own; what the pod asks for goes first, in
	// either spelling.
	if got := s.Linux.Sysctl; len(got) != 2 || got["net.ipv4.ip_unprivileged_port_start"] != "0" || got["net.ipv4.ping_group_range"] != "1 1" {
		t.Errorf("sysctls %v", got)
	}
	cfg.Linux.Sysctls = nil
	cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
	if s, _, err = ForSandbox(h, Sandbox{ID: "p1", Config: cfg}); err != nil || len(s.Linux.Sysctl) != 0 {
		t.Errorf("on the host's network: %v %v", s.Linux.Sysctl, err)
	}
}
