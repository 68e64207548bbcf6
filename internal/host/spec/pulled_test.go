// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// PROPERTIES 69: a profile from a registry is applied with its base, once that is proved, or the error
// names the field, the profile or the reason.
func TestAPulledProfileIsGivenOrRefused(t *testing.T) {
	const ref = "registry.example/p@sha256:00"
	allow := func(names ...string) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: names, Action: specs.ActAllow}}}
	}
	with := func(p *runtimeapi.SecurityProfile, fields *cri138.SecurityProfile) *runtimeapi.SecurityProfile {
		cri138.Set(p, fields)
		return p
	}
	of := func(ref string, base *cri138.SecurityProfileBase) *runtimeapi.SecurityProfile {
		return with(profileOf(cri138.SecurityProfile_OCI, ""), &cri138.SecurityProfile{OciRef: ref, BaseProfile: base})
	}
	local := func(path string) *cri138.SecurityProfileBase {
		return &cri138.SecurityProfileBase{Type: cri138.SecurityProfileBase_Localhost, LocalhostRef: path}
	}
	off, unproved, proved := host(), host(), host()
	off.Seccomp = false
	unproved.ProveSeccomp = func(_, _, _ *specs.LinuxSeccomp) error { return errors.New("looser") }
	proofs := 0
	proved.ProveSeccomp = func(_, _, _ *specs.LinuxSeccomp) error {
		if proofs++; proofs%2 == 1 {
			return errors.New("the other variant")
		}
		return nil
	}
	for _, tt := range []struct {
		name    string
		host    Host
		guest   bool
		profile *runtimeapi.SecurityProfile
		allows  string
		refused string
	}{
		{"with the default", proved, false, of(ref, nil), "read", ""},
		{"with the default, which is named", proved, false, of(ref, &cri138.SecurityProfileBase{}), "read", ""},
		{"with one of the node", proved, false, of(ref, local("/base")), "mount", ""},
		{"that is not here", proved, false, of("registry.example/absent@sha256:00", nil), "", "registry.example/absent@sha256:00 is not on this node"},
		{"whose base is not here", proved, false, of(ref, local("/absent")), "", "base_profile: seccomp: load profile /absent"},
		{"that is not proved", unproved, false, of(ref, nil), "", "looser"},
		{"without a proof", host(), false, of(ref, nil), "", "not supported here"},
		{"without seccomp", off, false, of(ref, nil), "", "no seccomp"},
		{"on another kernel", proved, true, of(ref, nil), "", "kernel of their own"},
		{"without a reference", proved, false, of("", nil), "", "seccomp.oci_ref"},
		{"with a path", proved, false, with(profileOf(cri138.SecurityProfile_OCI, "/base"), &cri138.SecurityProfile{OciRef: ref}), "", "seccomp.localhost_ref"},
		{"a base without a path", proved, false, of(ref, local("")), "", "base_profile.localhost_ref"},
		{"the default base with a path", proved, false, of(ref, &cri138.SecurityProfileBase{LocalhostRef: "/base"}), "", "base_profile.localhost_ref"},
		{"an unknown base", proved, false, of(ref, &cri138.SecurityProfileBase{Type: 9}), "", "base_profile.type: 9"},
		{"a reference of another type", proved, false, with(profileOf(runtimeDefault, ""), &cri138.SecurityProfile{OciRef: ref}), "", "seccomp.oci_ref"},
		{"a base of another type", proved, false, with(profileOf(unconfined, ""), &cri138.SecurityProfile{BaseProfile: &cri138.SecurityProfileBase{}}), "", "seccomp.base_profile"},
	} {
		profiles := Profiles{
			Local: func(path string) (*specs.LinuxSeccomp, error) {
				if path != "/base" {
					return nil, errdefs.ErrNotFound
				}
				return allow("mount"), nil
			},
			Pulled: func(r string) (*specs.LinuxSeccomp, error) {
				if r != ref {
					return nil, fmt.Errorf("%s is not on this node: %w", r, errdefs.ErrNotFound)
				}
				return allow("read", "mount"), nil
			},
			Foreign: tt.guest,
		}
		in := input()
		in.Profiles, sec(&in).Seccomp = profiles, tt.profile
		container, _, cerr := ForContainer(tt.host, in)
		sandbox, _, serr := ForSandbox(tt.host, Sandbox{ID: "p1", Profiles: profiles, Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: tt.profile},
		}}})
		for _, got := range []struct {
			s   *specs.Spec
			err error
		}{{container, cerr}, {sandbox, serr}} {
			if tt.refused != "" {
				expectRefusal(t, got.err, tt.refused)
				continue
			}
			if got.err != nil {
				t.Errorf("%s: %v", tt.name, got.err)
				continue
			}
			for _, call := range got.s.Linux.Seccomp.Syscalls {
				if call.Action == specs.ActAllow && strings.Join(call.Names, " ") != tt.allows {
					t.Errorf("%s: it allows %v, want %s", tt.name, call.Names, tt.allows)
				}
			}
		}
	}
	in := input()
	sec(&in).Apparmor = of(ref, nil)
	_, _, err := ForContainer(proved, in)
	expectRefusal(t, err, "apparmor.profile_type")
}

func TestAProfileThatIsPulledIsOfTheOCI(t *testing.T) {
	const entry = `{"names":["read"],"action":"SCMP_ACT_ERRNO"`
	for _, tt := range []struct{ rest, refused string }{
		{`"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["no_such_call"],"action":"SCMP_ACT_ALLOW"}]}`, ""},
		{`"SCMP_ACT_ALLOW","defaultErrnoRet":38,"flags":["SECCOMP_FILTER_FLAG_LOG"]}`, ""},
		{`"SCMP_ACT_ALLOW","syscalls":[` + entry + `,"args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]}]}`, ""},
		{`"SCMP_ACT_MAYBE"}`, "defaultAction"},
		{`"SCMP_ACT_NOTIFY"}`, "SCMP_ACT_NOTIFY"},
		{`"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}`, "SCMP_ACT_NOTIFY"},
		{`"SCMP_ACT_ALLOW","listenerPath":"/run/x"}`, "listener"},
		{`"SCMP_ACT_ALLOW","listenerMetadata":"x"}`, "listener"},
		{`"SCMP_ACT_ALLOW","flags":["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}`, "flag"},
		{`"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_PDP11"]}`, "architecture"},
		{`"SCMP_ACT_ALLOW","archMap":[]}`, "unknown field"},
		{`"SCMP_ACT_ALLOW","syscalls":[` + entry + `,"includes":{"caps":["CAP_SYS_ADMIN"]}}]}`, "unknown field"},
		{`"SCMP_ACT_ALLOW","syscalls":[` + entry + `,"args":[{"index":0,"value":1,"op":"SCMP_CMP_LIKE"}]}]}`, "operator"},
		{`"SCMP_ACT_ALLOW","syscalls":[` + entry + `,"args":[{"index":6,"value":1,"op":"SCMP_CMP_EQ"}]}]}`, "argument 6"},
		{`"SCMP_ACT_ALLOW"}{}`, "follows"},
		{`{}`, "not a seccomp profile"},
		{`"SCMP_ACT_ALLOW","syscalls":[` + strings.Repeat(entry+`},`, 128) + entry + `}]}`, "129 entries"},
	} {
		err := CheckPulled([]byte(`{"defaultAction":`+tt.rest), 128)
		if (err == nil) != (tt.refused == "") || err != nil && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%.80s: %v, want %q", tt.rest, err, tt.refused)
		}
	}
}
