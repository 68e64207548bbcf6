// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Confinement that a pod asks for is given, or refused with the name of the field: it is never left
// out without a word.

func profileOf(t runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: t, LocalhostRef: ref}
}

const (
	runtimeDefault = runtimeapi.SecurityProfile_RuntimeDefault
	unconfined     = runtimeapi.SecurityProfile_Unconfined
	localhost      = runtimeapi.SecurityProfile_Localhost
)

// loads stands for the loader of profiles.
func loads(path string) (*specs.LinuxSeccomp, error) {
	if path != "/profiles/mine.json" {
		return nil, fmt.Errorf("%s: %w", path, errdefs.ErrNotFound)
	}
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64}}, nil
}

func TestSeccompIsGivenOrRefused(t *testing.T) {
	off := host()
	off.Seccomp = false
	for _, tt := range []struct {
		name       string
		host       Host
		profile    *runtimeapi.SecurityProfile
		deprecated string
		want       string // RuntimeDefault, Localhost, "" for none, or ! and a part of the error
	}{
		{"nothing asked for", host(), nil, "", ""},
		{"RuntimeDefault", host(), profileOf(runtimeDefault, ""), "", "RuntimeDefault"},
		{"Unconfined", host(), profileOf(unconfined, ""), "", ""},
		{"Localhost", host(), profileOf(localhost, "/profiles/mine.json"), "", "Localhost"},
		{"Localhost without a profile", host(), profileOf(localhost, ""), "", "!seccomp"},
		{"Localhost that is not there", host(), profileOf(localhost, "/profiles/absent.json"), "", "!/profiles/absent.json"},
		{"RuntimeDefault with a profile", host(), profileOf(runtimeDefault, "/profiles/mine.json"), "", "!seccomp"},
		{"unknown type", host(), profileOf(17, ""), "", "!seccomp"},
		{"RuntimeDefault without seccomp", off, profileOf(runtimeDefault, ""), "", "!no seccomp"},
		{"Localhost without seccomp", off, profileOf(localhost, "/profiles/mine.json"), "", "!no seccomp"},
		{"Unconfined without seccomp", off, profileOf(unconfined, ""), "", ""},
		{"older kubelet: runtime/default", host(), nil, "runtime/default", "RuntimeDefault"},
		{"older kubelet: docker/default", host(), nil, "docker/default", "RuntimeDefault"},
		{"older kubelet: unconfined", host(), nil, "unconfined", ""},
		{"older kubelet: localhost", host(), nil, "localhost//profiles/mine.json", "Localhost"},
		{"older kubelet: unknown", host(), nil, "/profiles/mine.json", "!seccomp_profile_path"},
		{"both: the newer counts", host(), profileOf(unconfined, ""), "runtime/default", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input()
			in.Profiles.Local = loads
			sec(&in).Seccomp, sec(&in).SeccompProfilePath = tt.profile, tt.deprecated //nolint:staticcheck // older kubelets send it
			s, _, err := ForContainer(tt.host, in)
			expectSeccomp(t, s, err, tt.want)
			s, _, err = ForSandbox(tt.host, Sandbox{ID: "p1", Profiles: Profiles{Local: loads}, Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: tt.profile, SeccompProfilePath: tt.deprecated}, //nolint:staticcheck // as above
			}}})
			expectSeccomp(t, s, err, tt.want)
		})
	}
}

// A rule for a system call that libseccomp does not know was left out without a word, so that the
// profile let through what it denies.
func TestADeniedSystemCallThatNobodyKnowsIsRefused(t *testing.T) {
	rule := func(a specs.LinuxSeccompAction, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Action: a, Names: names}
	}
	knows := func(names []string) (unknown []string, err error) {
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, "new") }), nil
	}
	for _, tt := range []struct {
		name    string
		profile specs.LinuxSeccomp
		ask     func([]string) ([]string, error)
		refused string // a part of the error; "" for none
	}{
		{"denied by name", specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
			rule(specs.ActErrno, "mount", "new1"), rule(specs.ActKillProcess, "new2"), rule(specs.ActAllow, "new3"),
		}}, knows, "denies new1, new2, which"},
		{"denied where the rest is logged", specs.LinuxSeccomp{DefaultAction: specs.ActLog, Syscalls: []specs.LinuxSyscall{rule(specs.ActTrap, "new")}}, knows, "denies new,"},
		{"all are known", specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{rule(specs.ActErrno, "mount")}}, knows, ""},
		{"allowed by name", specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			rule(specs.ActAllow, "new"), rule(specs.ActKill, "new2"),
		}}, knows, ""},
		{"asked in vain", specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{rule(specs.ActErrno, "mount")}},
			func([]string) ([]string, error) { return nil, errdefs.ErrNotFound }, "find out"},
	} {
		in, h := input(), host()
		h.UnknownSyscalls = tt.ask
		sec(&in).Seccomp = profileOf(localhost, "/profiles/deny.json")
		in.Profiles.Local = func(string) (*specs.LinuxSeccomp, error) { return &tt.profile, nil }
		_, _, err := ForContainer(h, in)
		if (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.refused)
		}
	}
}

func expectSeccomp(t *testing.T, s *specs.Spec, err error, want string) {
	t.Helper()
	if part, ok := strings.CutPrefix(want, "!"); ok {
		expectRefusal(t, err, part)
		return
	}
	if err != nil {
		t.Error(err)
		return
	}
	got := ""
	if p := s.Linux.Seccomp; p != nil {
		got = "RuntimeDefault"
		if len(p.Syscalls) == 0 {
			got = "Localhost"
		}
	}
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func expectRefusal(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want a refusal that names %q", err, part)
	} else if !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
		t.Errorf("not a refusal: %v", err)
	}
}

func TestAppArmorIsGivenOrRefused(t *testing.T) {
	on := host()
	on.AppArmorDefault = "default.d"
	on.AppArmorLoaded = func(profile string) (bool, error) { return profile == "mine", nil }
	for _, tt := range []struct {
		name       string
		host       Host
		profile    *runtimeapi.SecurityProfile
		deprecated string
		want       string
	}{
		{"nothing asked for", on, nil, "", "default.d"},
		{"nothing asked for, host without", host(), nil, "", ""},
		{"RuntimeDefault", on, profileOf(runtimeDefault, ""), "", "default.d"},
		{"RuntimeDefault, host without", host(), profileOf(runtimeDefault, ""), "", "!no AppArmor"},
		{"Unconfined", on, profileOf(unconfined, ""), "", ""},
		{"Unconfined, host without", host(), profileOf(unconfined, ""), "", ""},
		{"Localhost", on, profileOf(localhost, "mine"), "", "mine"},
		{"Localhost, not loaded", on, profileOf(localhost, "absent"), "", "!apparmor: profile absent is not loaded"},
		{"Localhost, host without", host(), profileOf(localhost, "mine"), "", "!no AppArmor"},
		{"Localhost without a profile", on, profileOf(localhost, ""), "", "!apparmor"},
		{"unknown type", on, profileOf(17, ""), "", "!apparmor"},
		// CRI: runtime/default is equivalent to no profile at all.
		{"older kubelet: runtime/default", on, nil, "runtime/default", "default.d"},
		{"older kubelet: runtime/default, host without", host(), nil, "runtime/default", ""},
		{"older kubelet: unconfined", on, nil, "unconfined", ""},
		{"older kubelet: localhost", on, nil, "localhost/mine", "mine"},
		{"older kubelet: localhost, host without", host(), nil, "localhost/mine", "!no AppArmor"},
		{"older kubelet: unknown", on, nil, "mine", "!apparmor_profile"},
		{"both: the newer counts", on, profileOf(unconfined, ""), "localhost/mine", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input()
			sec(&in).Apparmor, sec(&in).ApparmorProfile = tt.profile, tt.deprecated //nolint:staticcheck // older kubelets send it
			s, _, err := ForContainer(tt.host, in)
			if part, ok := strings.CutPrefix(tt.want, "!"); ok {
				expectRefusal(t, err, part)
			} else if err != nil || s.Process.ApparmorProfile != tt.want {
				t.Errorf("got %v %v, want %q", s, err, tt.want)
			}
		})
	}
}

// A container ran unconfined where the default profile could not be loaded, and one line in berth's
// log said so.
func TestAContainerIsNotUnconfinedBecauseAProfileCannotBeLoaded(t *testing.T) {
	h := host()
	h.AppArmorDefault = "default.d"
	h.AppArmorLoaded = func(profile string) (bool, error) { return profile == "mine", nil }
	cannot := errors.New("there is no apparmor_parser")
	h.LoadAppArmor = func() error { return cannot }
	for want, p := range map[string]*runtimeapi.SecurityProfile{
		"!there is no apparmor_parser":  nil,
		"!the default profile":          profileOf(runtimeDefault, ""),
		"":                              profileOf(unconfined, ""),
		"mine":                          profileOf(localhost, "mine"),
		"!install apparmor_parser, or ": nil,
	} {
		in := input()
		sec(&in).Apparmor = p
		s, _, err := ForContainer(h, in)
		if part, ok := strings.CutPrefix(want, "!"); ok {
			expectRefusal(t, err, part)
		} else if err != nil || s.Process.ApparmorProfile != want {
			t.Errorf("got %v %v, want %q", s, err, want)
		}
	}
	cannot = nil
	if s, _, err := ForContainer(h, input()); err != nil || s.Process.ApparmorProfile != "default.d" {
		t.Errorf("once it can be loaded: %v", err)
	}
}

// PROPERTIES 22: a profile that was asked for by name was left out without a word.
func TestAPrivilegedContainerHasTheAppArmorProfileThatItNames(t *testing.T) {
	h := host()
	h.AppArmorDefault = "default.d"
	h.AppArmorLoaded = func(profile string) (bool, error) { return profile == "mine", nil }
	for want, p := range map[string]*runtimeapi.SecurityProfile{
		"mine":                  profileOf(localhost, "mine"),
		"!absent is not loaded": profileOf(localhost, "absent"),
		"":                      profileOf(runtimeDefault, ""), // CRI: privileged implies it
	} {
		in := input()
		in.Sandbox.Linux.SecurityContext.Privileged = true
		sec(&in).Privileged, sec(&in).Apparmor = true, p
		s, _, err := ForContainer(h, in)
		if part, ok := strings.CutPrefix(want, "!"); ok {
			expectRefusal(t, err, part)
		} else if err != nil || s.Process.ApparmorProfile != want {
			t.Errorf("got %v %v, want %q", s, err, want)
		}
	}
}

// selinuxFake allocates a category for each label, as go-selinux does.
type selinuxFake struct{ asked [][]string }

func (f *selinuxFake) Init(options []string) (process, mount string, err error) {
	f.asked = append(f.asked, options)
	if slices.Contains(options, "disable") {
		return "", "mount(any)", nil
	}
	if slices.Contains(options, "role:bad") {
		return "", "", errors.New("no such role")
	}
	return "process(" + strings.Join(options, ",") + ")", "mount(" + strings.Join(options, ",") + ")", nil
}

func (f *selinuxFake) OptionsOf(process string) ([]string, error) {
	return []string{"level:of " + process}, nil
}

func TestSELinuxLabelsAreGivenOrSaidToBeMissing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options *runtimeapi.SELinuxOption
		want    string
	}{
		{"none asked for: the pod's", nil, "level:of pod"},
		{"level alone", &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}, "level:s0:c1,c2"},
		{"type alone", &runtimeapi.SELinuxOption{Type: "spc_t"}, "type:spc_t"},
		{"all", &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"}, "user:u,role:r,type:t,level:s0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := host()
			h.SELinux = &selinuxFake{}
			in := input()
			in.SandboxLabel = "pod"
			sec(&in).SelinuxOptions = tt.options
			s, degraded, err := ForContainer(h, in)
			if err != nil || len(degraded) != 0 {
				t.Fatalf("%v %v", degraded, err)
			}
			if s.Process.SelinuxLabel != "process("+tt.want+")" || s.Linux.MountLabel != "mount("+tt.want+")" {
				t.Errorf("process %q, mount %q", s.Process.SelinuxLabel, s.Linux.MountLabel)
			}
			// A host without SELinux runs it, as any runtime does: charts ask for spc_t everywhere.
			// It says so.
			s, degraded, err = ForContainer(host(), in)
			if err != nil || (len(degraded) == 1) != (tt.options != nil) || s.Process.SelinuxLabel+s.Linux.MountLabel != "" {
				t.Errorf("without SELinux: degraded %v, %v", degraded, err)
			}
		})
	}
	h := host()
	h.SELinux = &selinuxFake{}
	in := input()
	for _, o := range []*runtimeapi.SELinuxOption{{Level: "s0 evil"}, {Type: "a:b"}, {User: "a\nb"}, {Role: "bad"}} {
		sec(&in).SelinuxOptions = o
		_, _, err := ForContainer(h, in)
		refused(t, o.String(), err)
	}
	sec(&in).SelinuxOptions = nil
	in.Sandbox.Linux.SecurityContext.Privileged, sec(&in).Privileged = true, true
	s, _, err := ForContainer(h, in)
	if err != nil || s.Process.SelinuxLabel != "" || s.Linux.MountLabel != "mount(any)" {
		t.Errorf("privileged: %v %v", s.Process.SelinuxLabel, err)
	}
	s, _, err = ForSandbox(h, sandboxWith(nil))
	if err != nil || s.Process.SelinuxLabel != "process()" || s.Linux.MountLabel != "mount()" {
		t.Errorf("sandbox: %v", err)
	}
}

func TestArchitecturesOfTheDefaultSeccompProfile(t *testing.T) {
	for arch, want := range map[string][]specs.Arch{
		"amd64":   {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
		"arm64":   {specs.ArchAARCH64, specs.ArchARM},
		"ppc64le": {specs.ArchPPC64LE},
		"s390x":   {specs.ArchS390X, specs.ArchS390},
		"riscv64": {specs.ArchRISCV64},
		"loong64": {specs.ArchLOONGARCH64},
		"unheard": nil,
	} {
		if got := architectures(arch); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", arch, got, want)
		}
	}
	// The pause program is native alone. Cut from containerd's list it was ARM on arm64, and a
	// panic on ppc64le, which has none there.
	s, _, err := ForSandbox(host(), Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: profileOf(runtimeDefault, "")},
	}}})
	if err != nil || len(s.Linux.Seccomp.Architectures) > 1 {
		t.Errorf("%v %v", s.Linux.Seccomp.Architectures, err)
	}
}

func TestSeccompProfilesAreReadAsWritten(t *testing.T) {
	p, err := ParseSeccomp([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`), "arm64")
	if err != nil || !slices.Equal(p.Architectures, []specs.Arch{specs.ArchX86_64}) || len(p.Syscalls) != 1 {
		t.Errorf("OCI: %+v %v", p, err)
	}
	docker := []byte(`{"defaultAction":"SCMP_ACT_ERRNO","archMap":[
		{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X86"]},
		{"architecture":"SCMP_ARCH_AARCH64","subArchitectures":["SCMP_ARCH_ARM"]}],
		"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","comment":"","includes":{},"excludes":{}}]}`)
	p, err = ParseSeccomp(docker, "arm64")
	if err != nil || !slices.Equal(p.Architectures, []specs.Arch{specs.ArchAARCH64, specs.ArchARM}) {
		t.Errorf("Docker, arm64: %+v %v", p, err)
	}
	p, err = ParseSeccomp(docker, "ppc64le")
	if err != nil || !slices.Equal(p.Architectures, []specs.Arch{specs.ArchPPC64LE}) {
		t.Errorf("Docker, ppc64le: %+v %v", p, err)
	}
	for what, bad := range map[string]string{
		"not JSON":              `{`,
		"no default action":     `{"syscalls":[]}`,
		"rules with conditions": `{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["bpf"],"action":"SCMP_ACT_ALLOW","includes":{"caps":["CAP_BPF"]}}]}`,
		"unknown action":        `{"defaultAction":"ALLOW"}`,
		"too large":             `{"defaultAction":"SCMP_ACT_ERRNO","listenerPath":"` + strings.Repeat("x", MaxSeccomp) + `"}`,
	} {
		_, err := ParseSeccomp([]byte(bad), "amd64")
		refused(t, what, err)
	}
}
