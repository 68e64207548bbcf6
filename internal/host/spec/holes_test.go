// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// These are the past holes of programs like this one (PROPERTIES, "Past holes"), each closed. The
// names say what they were. Those of images and archives are in package ctrd.

func host() Host {
	return Host{
		Capabilities:   []string{"CAP_CHOWN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_KILL"},
		Seccomp:        true,
		MinOOMScoreAdj: -1000,
		Devices:        func() []Device { return []Device{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}} },
	}
}

func input() Container {
	return Container{
		ID:         "c1",
		SandboxID:  "p1",
		SandboxPID: 7,
		NetNS:      "/run/netns/x",
		Hostname:   "h",
		ImageName:  "img",
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Command:  []string{"/x"},
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{},
				Resources:       &runtimeapi.LinuxContainerResources{},
			},
		},
		Sandbox: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"},
			Linux:    &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{}},
		},
		Passwd: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbig:x:4294967296:0::/:/bin/sh\n"),
		Group:  []byte("root:x:0:\nwheel:x:10:app,other\napp:x:1001:\n"),
	}
}

func sec(in *Container) *runtimeapi.LinuxContainerSecurityContext {
	return in.Config.Linux.SecurityContext
}

func make1(t *testing.T, in Container) *specs.Spec {
	t.Helper()
	s, _, err := ForContainer(host(), in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("%s: got %v", what, err)
	}
}

// CVE-2022-24769, CVE-2022-27652
func TestInheritableCapabilitiesStayEmpty(t *testing.T) {
	in := input()
	sec(&in).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	c := make1(t, in).Process.Capabilities
	if len(c.Inheritable)+len(c.Ambient) != 0 || !slices.Contains(c.Effective, "CAP_SYS_ADMIN") || !slices.Contains(c.Effective, "CAP_CHOWN") {
		t.Errorf("%+v", c)
	}
	sec(&in).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"CAP_KILL"}, DropCapabilities: []string{"ALL"}}
	if c := make1(t, in).Process.Capabilities; !slices.Equal(c.Bounding, []string{"CAP_KILL"}) {
		t.Errorf("%+v", c)
	}
	sec(&in).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NOPE"}}
	_, _, err := ForContainer(host(), in)
	refused(t, "unknown capability", err)
}

// CVE-2024-40635
func TestIDsBeyondInt32AreRefusedAndNeverRoot(t *testing.T) {
	for _, user := range []string{"4294967296", "2147483648", "18446744073709551616", "1000:4294967296", "big"} {
		in := input()
		in.Image.User = user
		_, _, err := ForContainer(host(), in)
		refused(t, "user "+user, err)
	}
	for _, v := range []int64{-1, math.MaxInt32 + 1, math.MaxInt64} {
		in := input()
		sec(&in).RunAsUser = &runtimeapi.Int64Value{Value: v}
		_, _, err := ForContainer(host(), in)
		refused(t, "run_as_user", err)
		in = input()
		sec(&in).SupplementalGroups = []int64{v}
		_, _, err = ForContainer(host(), in)
		refused(t, "supplemental group", err)
	}
}

// CVE-2023-25173, CVE-2022-2995: the own group is one of the supplementary ones, and so is dropped
// by no program that only looks there.
func TestUsersAndGroupsAreResolved(t *testing.T) {
	for _, tt := range []struct {
		user     string
		edit     func(*runtimeapi.LinuxContainerSecurityContext)
		uid, gid uint32
		groups   []uint32
		home     string
	}{
		{"", nil, 0, 0, []uint32{0}, "/root"},
		{"app", nil, 1000, 1001, []uint32{1001, 10}, "/home/app"},
		{"1000", nil, 1000, 1001, []uint32{1001, 10}, "/home/app"},
		{"app:wheel", nil, 1000, 10, []uint32{10}, "/home/app"},
		{"77:88", nil, 77, 88, []uint32{88}, "/"},
		{"app", func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
			s.SupplementalGroups = []int64{5}
		}, 1000, 1001, []uint32{1001, 5}, "/home/app"},
		{"app", func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 3}, &runtimeapi.Int64Value{Value: 4}
		}, 3, 4, []uint32{4}, "/"},
	} {
		in := input()
		in.Image.User = tt.user
		if tt.edit != nil {
			tt.edit(sec(&in))
		}
		s := make1(t, in)
		if u := s.Process.User; u.UID != tt.uid || u.GID != tt.gid || !slices.Equal(u.AdditionalGids, tt.groups) || !slices.Contains(s.Process.Env, "HOME="+tt.home) {
			t.Errorf("%q: %+v, %v", tt.user, u, s.Process.Env)
		}
	}
	in := input()
	in.Image.User = "nobody-here"
	_, _, err := ForContainer(host(), in)
	refused(t, "unknown user", err)
	in = input()
	sec(&in).RunAsGroup = &runtimeapi.Int64Value{Value: 4}
	_, _, err = ForContainer(host(), in)
	refused(t, "run_as_group alone", err)
	in = input()
	in.Image.User = "root\nevil:x:0:0"
	_, _, err = ForContainer(host(), in)
	refused(t, "newline in user", err)
}

// CVE-2025-4437
func TestAHugePasswdIsRefusedNotEaten(t *testing.T) {
	in := input()
	in.Passwd = make([]byte, MaxEtcFile+1)
	_, _, err := ForContainer(host(), in)
	refused(t, "huge passwd", err)
}

// CVE-2021-21334
func TestEnvOfOneContainerNeverLeaksIntoAnother(t *testing.T) {
	image := ocispec.ImageConfig{Env: append(make([]string, 0, 10), "A=image", "B=image"), Entrypoint: append(make([]string, 0, 10), "/e"), Cmd: append(make([]string, 0, 10), "c")}
	one, two := input(), input()
	one.Image, two.Image = image, image
	one.Config.Command, two.Config.Command = nil, nil
	one.Config.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte("one")}, {Key: "SECRET", Value: []byte("1")}}
	one.Config.Args, two.Config.Args = []string{"1"}, []string{"2"}
	s1, s2 := make1(t, one), make1(t, two)
	if !slices.Contains(s1.Process.Env, "A=one") || !slices.Contains(s2.Process.Env, "A=image") || slices.Contains(s2.Process.Env, "SECRET=1") {
		t.Errorf("%v %v", s1.Process.Env, s2.Process.Env)
	}
	if !slices.Equal(s1.Process.Args, []string{"/e", "1"}) || !slices.Equal(s2.Process.Args, []string{"/e", "2"}) || image.Env[0] != "A=image" {
		t.Errorf("%v %v", s1.Process.Args, s2.Process.Args)
	}
}

// CVE-2024-21626
func TestAWorkingDirectoryIsNotADescriptor(t *testing.T) {
	for _, dir := range []string{
		"/proc/self/fd/7", "/proc/./self/fd/7", "relative", "/a/../proc/self/fd", "/proc/thread-self/fd/7", "/proc/1/fd/7",
		"/proc/self/task/1/fd/7", "//proc//self//fd//7", "/a\x00b",
	} {
		in := input()
		in.Config.WorkingDir = dir
		_, _, err := ForContainer(host(), in)
		refused(t, dir, err)
		in = input()
		in.Image.WorkingDir = dir
		_, _, err = ForContainer(host(), in)
		refused(t, "of the image: "+dir, err)
	}
	for _, dir := range []string{"/", "/fd", "/proc", "/home/proc/self/fd", "/procs/x/fd"} {
		in := input()
		in.Config.WorkingDir = dir
		if got := make1(t, in).Process.Cwd; got != dir {
			t.Errorf("%s became %s", dir, got)
		}
	}
}

// CVE-2022-23648
func TestVolumesOfAnImageStayInTheImageAndAreBounded(t *testing.T) {
	for _, v := range []string{"/../../etc", "a/../../b", "x\x00y"} {
		refused(t, v, CheckImage(ocispec.ImageConfig{Volumes: map[string]struct{}{v: {}}}))
	}
	many := map[string]struct{}{}
	for i := range MaxVolumes {
		many[fmt.Sprint("/v", i)] = struct{}{}
	}
	if err := CheckImage(ocispec.ImageConfig{Volumes: many}); err != nil {
		t.Error(err)
	}
	many["/one/more"] = struct{}{}
	refused(t, "too many", CheckImage(ocispec.ImageConfig{Volumes: many}))
	in := input()
	in.Image.Volumes = many
	_, _, err := ForContainer(host(), in)
	refused(t, "a container of it", err)
}

func TestMountsStayInTheContainer(t *testing.T) {
	for _, m := range []*runtimeapi.Mount{
		{ContainerPath: "/a/../../etc", HostPath: "/x"}, {ContainerPath: "", HostPath: "/x"}, {ContainerPath: "/a", HostPath: "x"},
		{ContainerPath: "/a", HostPath: "/x", RecursiveReadOnly: true}, {ContainerPath: "/", HostPath: "/x"},
		{ContainerPath: "/a", HostPath: "/x\x00y"}, {ContainerPath: "/a", HostPath: "/x", Propagation: 17},
	} {
		in := input()
		in.Config.Mounts = []*runtimeapi.Mount{m}
		_, _, err := ForContainer(host(), in)
		refused(t, m.String(), err)
	}
	in := input()
	in.Files = map[string]string{"/etc/hosts": "/pod/hosts", "/dev/shm": "/pod/shm"}
	in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/etc/hosts", HostPath: "/mine", Readonly: true}, {ContainerPath: "/a/b", HostPath: "/x"}, {ContainerPath: "/a", HostPath: "/y"}}
	var order []string
	for _, m := range make1(t, in).Mounts {
		if m.Type == "bind" {
			order = append(order, m.Source)
		}
	}
	if slices.Contains(order, "/pod/hosts") || slices.Index(order, "/y") > slices.Index(order, "/x") || !slices.Contains(order, "/pod/shm") {
		t.Errorf("%v", order)
	}
}

// CVE-2022-0811
func TestSysctlValuesCannotSmuggle(t *testing.T) {
	sysctl := func(k, v string, ns *runtimeapi.NamespaceOption) error {
		_, _, err := ForSandbox(host(), Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls: map[string]string{k: v}, SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: ns},
		}}})
		return err
	}
	if err := sysctl("net.ipv4.ip_forward", "1", nil); err != nil {
		t.Error(err)
	}
	refused(t, "plus", sysctl("net.ipv4.ip_forward", "1+kernel.core_pattern=|/x", nil))
	refused(t, "newline", sysctl("net.ipv4.ip_forward", "1\nkernel.core_pattern=|/x", nil))
	refused(t, "no namespace", sysctl("kernel.core_pattern", "|/x", nil))
	for _, name := range []string{
		"net.ipv4.ip_forward=1+kernel.x", "net", "", ".", "/net/ipv4/x", "net//x", "net..x", "net/../kernel/core_pattern",
		"net.//.kernel.core_pattern", "net/./x", "net/x/",
	} {
		refused(t, "name", sysctl(name, "1", nil))
	}
	refused(t, "host network", sysctl("net.ipv4.ip_forward", "1", &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}))
}

// CVE-2024-3154
func TestAnnotationsNeverBecomeUnitProperties(t *testing.T) {
	in := input()
	in.PodAnnotations = []string{"*"}
	in.Sandbox.Annotations = map[string]string{"org.systemd.property.ExecStart": "x", "a/b": "y"}
	a := make1(t, in).Annotations
	if _, ok := a["org.systemd.property.ExecStart"]; ok || a["a/b"] != "y" || a["io.kubernetes.cri.sandbox-id"] != "p1" {
		t.Errorf("%v", a)
	}
}

// With pod_annotations = ["*"] a pod named a file of CRIU's settings to runc, which can name a
// program that is run as root of the host; and with crun a file for the output of hooks, and a
// seccomp filter.
func TestAnnotationsThatARuntimeActsOnDoNotPassByAPattern(t *testing.T) {
	never := []string{
		"org.criu.config", "run.oci.hooks.stdout", "run.oci.seccomp.receiver", "run.oci.seccomp_bpf_data",
		"run.oci.pidfd_receiver", "io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-log-directory",
	}
	byName := []string{"run.oci.handler", "run.oci.keep_original_groups", "run.oci.systemd.subgroup"}
	given := map[string]string{"a/b": "y"}
	for _, k := range append(byName, never...) {
		given[k] = "x"
	}
	for _, by := range []string{"pod", "container"} {
		annotations := func(patterns ...string) map[string]string {
			in := input()
			if by == "pod" {
				in.PodAnnotations, in.Sandbox.Annotations = patterns, given
			} else {
				in.ContainerAnnotations, in.Config.Annotations = patterns, given
			}
			return make1(t, in).Annotations
		}
		a, named := annotations("*", "org.criu.*", "run.oci.*"), annotations(append(never, byName...)...)
		for _, k := range never {
			if a[k] == "x" || named[k] == "x" {
				t.Errorf("%s: %s passes", by, k)
			}
		}
		for _, k := range byName {
			if a[k] == "x" || named[k] != "x" {
				t.Errorf("%s: %s passes by a pattern %q, by its name %q", by, k, a[k], named[k])
			}
		}
		if a["a/b"] != "y" {
			t.Errorf("%s: %v", by, a)
		}
	}
	in := Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{Annotations: given}, PodAnnotations: []string{"*"}}
	s, _, err := ForSandbox(host(), in)
	if err != nil || s.Annotations["org.criu.config"] != "" || s.Annotations["a/b"] != "y" {
		t.Errorf("%v %v", s.Annotations, err)
	}
}

func TestPrivilegedNeedsAPrivilegedSandbox(t *testing.T) {
	in := input()
	sec(&in).Privileged = true
	_, _, err := ForContainer(host(), in)
	refused(t, "privileged", err)
	in.Sandbox.Linux.SecurityContext.Privileged = true
	sec(&in).Seccomp = &runtimeapi.SecurityProfile{}
	s := make1(t, in)
	if s.Linux.Seccomp != nil || len(s.Linux.Devices) != 1 || len(s.Process.Capabilities.Effective) != len(host().Capabilities) {
		t.Errorf("%+v", s.Linux)
	}
}

func TestSeccompDefaultIsAppliedWhereItIsAskedFor(t *testing.T) {
	in := input()
	if make1(t, in).Linux.Seccomp != nil {
		t.Error("it is there, and was not asked for")
	}
	sec(&in).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	if make1(t, in).Linux.Seccomp == nil {
		t.Error("it is missing")
	}
}

// CVE-2022-4318: a newline in a value became a line of a file.
func TestNamesOfAPodStayInTheirFiles(t *testing.T) {
	_, _, err := EtcFiles(&runtimeapi.PodSandboxConfig{}, nil, "a\n6.6.6.6 evil")
	refused(t, "hostname", err)
	_, _, err = EtcFiles(&runtimeapi.PodSandboxConfig{DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1\nsearch evil"}}}, nil, "h")
	refused(t, "DNS server", err)
	name, resolv, err := EtcFiles(&runtimeapi.PodSandboxConfig{DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a", "b"}, Options: []string{"ndots:5"}}}, []byte("host"), "h")
	if err != nil || string(resolv) != "search a b\nnameserver 1.1.1.1\noptions ndots:5\n" || string(name) != "h\n" {
		t.Errorf("%q %q %v", name, resolv, err)
	}
}

func TestCgroupPathsPerDriver(t *testing.T) {
	for _, tt := range []struct {
		systemd      bool
		parent, want string
	}{
		{false, "", "/k8s.io/id"}, {false, "/kubepods/pod1", "/kubepods/pod1/id"}, {false, "kubepods.slice", ""}, {false, "/kubepods.slice/kubepods-pod1.slice", ""}, {false, "/../../x", ""},
		{true, "", "system.slice:cri-containerd:id"}, {true, "/kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice:cri-containerd:id"}, {true, "/kubepods", ""},
	} {
		got, err := cgroupsPath(tt.systemd, tt.parent, "id")
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("systemd %v, parent %q: %q %v", tt.systemd, tt.parent, got, err)
		}
	}
}

func TestWhatTheHostCannotDoIsReported(t *testing.T) {
	h := host()
	h.MinOOMScoreAdj = 0
	in := input()
	in.Config.Linux.Resources.OomScoreAdj = -900
	in.Config.Linux.Resources.Unified = map[string]string{"memory.high": "1"}
	s, degraded, err := ForContainer(h, in)
	if err != nil || len(degraded) != 2 || *s.Process.OOMScoreAdj != 0 {
		t.Errorf("%v %v", degraded, err)
	}
}

func FuzzUsers(f *testing.F) {
	f.Add("app:wheel", []byte("a:x:1:2::/:\n"), []byte("g:x:3:a,b\n"))
	f.Fuzz(func(t *testing.T, user string, passwd, group []byte) {
		in := input()
		in.Image.User, in.Passwd, in.Group = user, passwd, group
		s, _, err := ForContainer(host(), in)
		if err == nil && (s.Process.User.UID > math.MaxInt32 || s.Process.User.GID > math.MaxInt32) {
			t.Fatalf("%+v", s.Process.User)
		}
	})
}
