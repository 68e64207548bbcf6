// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
	if got, err := NetSysctls(h, cfg); err != nil || len(got) != 2 || got["net.ipv4.ip_unprivileged_port_start"] != "0" || got["net.ipv4.ping_group_range"] != "1 1" {
		t.Errorf("sysctls %v, %v", got, err)
	}
	cfg.Linux.Sysctls = nil
	cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
	if s, _, err = ForSandbox(h, Sandbox{ID: "p1", Config: cfg}); err != nil || len(s.Linux.Sysctl) != 0 {
		t.Errorf("on the host's network: %v %v", s.Linux.Sysctl, err)
	}
}

// An image decides what runs in a sandbox, and as whom. It does not get more than the built-in
// program has.
func TestASandboxImageDecidesWhatRunsAndNothingElse(t *testing.T) {
	in := sandboxWith(nil)
	in.Pause = Pause{
		Rootfs:    "/layer",
		ImageName: "pause:1",
		Image: &ocispec.ImageConfig{
			Entrypoint: []string{"/hold"},
			Cmd:        []string{"on"},
			Env:        []string{"A=b"},
			WorkingDir: "/w",
			User:       "holder",
		},
		Passwd: []byte("holder:x:7:8::/:\n"),
	}
	s, _, err := ForSandbox(host(), in)
	if err != nil {
		t.Fatal(err)
	}
	p := s.Process
	if !slices.Equal(p.Args, []string{"/hold", "on"}) || !slices.Equal(p.Env, []string{"A=b"}) || p.Cwd != "/w" || p.User.UID != 7 || p.User.GID != 8 {
		t.Errorf("%+v", p)
	}
	if s.Root.Path != "/layer" || !s.Root.Readonly || !p.NoNewPrivileges || len(p.Capabilities.Bounding) != 0 {
		t.Errorf("%+v %+v", s.Root, p)
	}
	in.Pause.Image.User = ""
	if s, _, err = ForSandbox(host(), in); err != nil || s.Process.User.UID != pauseUser {
		t.Errorf("without a user: %+v %v", s.Process.User, err)
	}
	for what, cfg := range map[string]ocispec.ImageConfig{
		"command":     {},
		"working_dir": {Cmd: []string{"x"}, WorkingDir: "/proc/self/fd/7"},
		"user":        {Cmd: []string{"x"}, User: "nobody-knows"},
	} {
		in.Pause.Image = &cfg
		_, _, err := ForSandbox(host(), in)
		refused(t, what, err)
		refused(t, "sandbox image pause:1", err)
	}
}
