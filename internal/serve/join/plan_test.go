// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func ptr[T any](v T) *T { return &v }

func simple() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{
			Cwd:          "/",
			Env:          []string{"PATH=/bin", "HOME=/root"},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"}},
			OOMScoreAdj:  ptr(7),
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}},
	}
}

func refused(err error, why Reason) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Why == why
}

// PROPERTIES 45: what is not known exactly is left to the OCI runtime.
func TestWhatIsNotKnownIsRefused(t *testing.T) {
	for name, change := range map[string]func(s *specs.Spec){
		"no process":            func(s *specs.Spec) { s.Process = nil },
		"no linux":              func(s *specs.Spec) { s.Linux = nil },
		"another system":        func(s *specs.Spec) { s.VM = &specs.VM{} },
		"no capabilities":       func(s *specs.Spec) { s.Process.Capabilities = nil },
		"an unknown capability": func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_NEW"} },
		"no OOM score":          func(s *specs.Spec) { s.Process.OOMScoreAdj = nil },
		"a scheduler":           func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{} },
		"a priority":            func(s *specs.Spec) { s.Process.IOPriority = &specs.LinuxIOPriority{} },
		"processors":            func(s *specs.Spec) { s.Process.ExecCPUAffinity = &specs.CPUAffinity{} },
		"two labels":            func(s *specs.Spec) { s.Process.SelinuxLabel, s.Process.ApparmorProfile = "a", "b" },
		"a relative directory":  func(s *specs.Spec) { s.Process.Cwd = "tmp" },
		"a limit":               func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NEW"}} },
		"a variable":            func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "A") },
		"a variable of no name": func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "=A") },
		"no HOME":               func(s *specs.Spec) { s.Process.Env = nil },
		"an empty HOME":         func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "HOME=") },
		"no mount namespace":    func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] },
		"a time namespace":      func(s *specs.Spec) { s.Linux.Namespaces[1].Type = specs.TimeNamespace },
		"offsets of time":       func(s *specs.Spec) { s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {}} },
		"a personality":         func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{} },
		"a memory policy":       func(s *specs.Spec) { s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{} },
		"resource director":     func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} },
	} {
		s := simple()
		if _, err := planned("c", runc, s, 40); err != nil {
			t.Fatal(err)
		}
		change(s)
		if _, err := planned("c", runc, s, 40); !refused(err, Specification) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// PROPERTIES 45: a field that the specification gets must be looked at before a process with it is
// made here.
func TestEveryFieldOfTheSpecificationIsKnown(t *testing.T) {
	for _, c := range []struct {
		of    any
		known string
	}{
		{specs.Process{}, "Terminal ConsoleSize User Args CommandLine Env Cwd Capabilities Rlimits NoNewPrivileges ApparmorProfile OOMScoreAdj Scheduler SelinuxLabel IOPriority ExecCPUAffinity"},
		{specs.User{}, "UID GID Umask AdditionalGids Username"},
		{specs.LinuxCapabilities{}, "Bounding Effective Inheritable Permitted Ambient"},
		{specs.Linux{}, "UIDMappings GIDMappings Sysctl Resources CgroupsPath Namespaces Devices NetDevices Seccomp RootfsPropagation MaskedPaths ReadonlyPaths MountLabel IntelRdt MemoryPolicy Personality TimeOffsets"},
		{specs.LinuxSeccomp{}, "DefaultAction DefaultErrnoRet Architectures Flags ListenerPath ListenerMetadata Syscalls"},
		{specs.LinuxSyscall{}, "Names Action ErrnoRet Args"},
		{specs.LinuxSeccompArg{}, "Index Value ValueTwo Op"},
		{specs.Spec{}, "Version Process Root Hostname Domainname Mounts Hooks Annotations Linux Solaris Windows VM ZOS FreeBSD"},
	} {
		v := reflect.TypeOf(c.of)
		for i := range v.NumField() {
			if name := v.Field(i).Name; !slices.Contains(strings.Fields(c.known), name) {
				t.Errorf("%s has a field %s: look at what runc does with it in an exec", v, name)
			}
		}
	}
}

func TestAPlanIsEncodedAsTheProgramReadsIt(t *testing.T) {
	if n := unsafe.Sizeof(head{}); n != 20*4+5*8 || int(n) != binary.Size(head{}) {
		t.Errorf("struct plan has %d bytes", n)
	}
	p, err := planned("c", runc, simple(), 40)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.encode([]string{"sh", "-c", ""}, 2, true)
	if err != nil {
		t.Fatal(err)
	}
	var h head
	if _, err := binary.Decode(b, binary.NativeEndian, &h); err != nil {
		t.Fatal(err)
	}
	if int(h.Size) != len(b)-binary.Size(h) || h.Args != 3 || h.Env != 2 || h.Cgroups != 2 || h.Unified != 1 || h.Bounding != 1|1<<40 || h.OOM != 7 || h.Namespaces != unix.CLONE_NEWNS|unix.CLONE_NEWPID {
		t.Errorf("%+v", h)
	}
	if want := "/\x00/bin\x00_ses.c\x00\x00\x00sh\x00-c\x00\x00PATH=/bin\x00HOME=/root\x00"; string(b[binary.Size(h):]) != want {
		t.Errorf("%q", b[binary.Size(h):])
	}
	if _, err := p.encode([]string{"a\x00b"}, 0, false); !refused(err, Specification) {
		t.Error(err)
	}
	if _, err := p.encode([]string{strings.Repeat("x", largest)}, 0, false); !refused(err, Specification) {
		t.Error(err)
	}
}

func TestTheLastOfAVariableCounts(t *testing.T) {
	vars := []string{"A=1", "PATH=/x", "B=2", "A=3", "HOME=/", "PATH=/b//c:d:/e/../f/:"}
	for _, c := range []struct {
		inPlace bool
		path    string
		env     []string
	}{
		{false, "/b/c:d:/f:.", []string{"B=2", "A=3", "HOME=/", "PATH=/b//c:d:/e/../f/:"}},
		{true, "/b//c:d:/e/../f:", []string{"A=3", "PATH=/b//c:d:/e/../f/:", "B=2", "HOME=/"}},
	} {
		env, path, err := environment(vars, c.inPlace)
		if err != nil || path != c.path || !slices.Equal(env, c.env) {
			t.Errorf("%q %q %v, want %q %q", path, env, err, c.path, c.env)
		}
	}
}

func TestOnlyAKnownOCIRuntimeIsTrusted(t *testing.T) {
	for r, known := range map[Runtime]bool{
		{}:                                    false,
		{Name: "runc"}:                        false,
		{Name: "runc", Version: "1.4.0"}:      false,
		{Name: "runc", Version: "1.6.0"}:      false,
		{Name: "runc", Version: "1.50.0"}:     false,
		{Name: "runc", Version: "1.5.0-rc.1"}: false,
		{Name: "runc", Version: "1.5.2+dev"}:  false,
		{Name: "runc", Version: "1.21"}:       false,
		{Name: "runc", Version: "1.5.2"}:      true,
		{Name: "crun", Version: "1.5.2"}:      false,
		{Name: "crun", Version: "1.2"}:        false,
		{Name: "crun", Version: "1.21"}:       true,
		{Name: "crun", Version: "1.21.1"}:     true,
		{Name: "crun", Version: "1.22"}:       false,
		{Name: "crun", Version: "1.28"}:       true,
		{Name: "youki", Version: "1.5.2"}:     false,
	} {
		if err := r.check(); (err == nil) != known || err != nil && !refused(err, OCIRuntime) {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err := (&Joiner{}).Prepare(t.Context(), Container{Runtime: r}, []string{"true"}); refused(err, OCIRuntime) == known {
			t.Errorf("a program in a container of %+v: %v", r, err)
		}
	}
}

// The configuration of a handler may name another OCI runtime than that which has made the
// container.
func TestAContainerOfAnotherOCIRuntimeIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/state.json", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (Runtime{Name: runc}).made(dir); err != nil {
		t.Error(err)
	}
	if err := (Runtime{Name: crun}).made(dir); !refused(err, OCIRuntime) {
		t.Errorf("got %v", err)
	}
	if err := (Runtime{Name: runc}).made(dir + "/none"); !refused(err, OCIRuntime) {
		t.Errorf("got %v", err)
	}
}

func TestAPlanForCrunDoesAsCrunDoes(t *testing.T) {
	p, err := planned("c", crun, simple(), 40)
	if err != nil || p.head.Crun != 1 || p.head.Umask != 0o022 || p.keyring != "c" {
		t.Errorf("%+v %v", p, err)
	}
	s := simple()
	umask := uint32(0o077)
	s.Process.User.Umask = &umask
	if p, err = planned("c", crun, s, 40); err != nil || p.head.Umask != umask {
		t.Errorf("%+v %v", p, err)
	}
	for _, name := range []string{"run.oci.handler", "module.wasm.image/variant"} {
		s := simple()
		s.Annotations = map[string]string{name: "x"}
		if _, err := planned("c", crun, s, 40); !refused(err, Specification) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := planned("c", runc, s, 40); err != nil {
			t.Errorf("%s, for runc: %v", name, err)
		}
	}
}

// PROPERTIES 45: what crun has kept is loaded into a process of a container: half a filter, or
// none, would be a hole.
func TestAFilterThatCrunHasNotKeptIsRefused(t *testing.T) {
	allow := binary.NativeEndian.AppendUint32([]byte{6, 0, 0, 0}, actAllow) // return
	deny := binary.NativeEndian.AppendUint32([]byte{6, 0, 0, 0}, 0)
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	dir := t.TempDir()
	if _, err := kept(dir, s); !refused(err, Seccomp) {
		t.Errorf("there is none: %v", err)
	}
	for name, c := range map[string]struct {
		code []byte
		ok   bool
	}{
		"whole":             {allow, true},
		"empty":             {nil, false},
		"half":              {allow[:4], false},
		"too long":          {bytes.Repeat(allow, mostInstructions+1), false},
		"allows no word":    {deny, false},
		"is no program":     {[]byte("whatever"), false},
		"as long as can be": {bytes.Repeat(allow, mostInstructions), true},
	} {
		if err := os.WriteFile(dir+"/seccomp.bpf", c.code, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := kept(dir, s)
		if c.ok && (err != nil || !bytes.Equal(f.code, c.code) || f.flags != unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW) || !c.ok && !refused(err, Seccomp) {
			t.Errorf("%s: %d bytes, flags %d, %v", name, len(f.code), f.flags, err)
		}
	}
	if err := os.WriteFile(dir+"/seccomp.bpf", allow, 0o644); err != nil {
		t.Fatal(err)
	}
	if f, err := kept(dir, nil); err != nil || f.code != nil {
		t.Errorf("without a profile: %+v %v", f, err)
	}
	for name, s := range map[string]*specs.LinuxSeccomp{
		"a flag":     {Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagWaitKillableRecv}},
		"a listener": {ListenerPath: "/x"},
	} {
		if _, err := kept(dir, s); !refused(err, Seccomp) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}
	if f, err := kept(dir, s); err != nil || f.flags != unix.SECCOMP_FILTER_FLAG_LOG {
		t.Errorf("with a flag: %+v %v", f, err)
	}
}

func TestGroupsAreThoseOfTheContainer(t *testing.T) {
	v1 := parseHierarchies(`31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 31 0:32 /part /mnt rw - cgroup2 cgroup2 rw
`)
	if len(v1) != 4 {
		t.Fatalf("%+v", v1)
	}
	own := membership([]byte("3:cpu,cpuacct:/own\n2:freezer:/own\n1:name=systemd:/own\n0::/own\n"))
	g, err := groupsOf("/k/c", v1, membership([]byte("3:cpu,cpuacct:/k/c\n2:freezer:/k/c\n1:name=systemd:/k/c\n0::/own\n")), own)
	if err != nil || g.unified != "" || g.freezer != "/sys/fs/cgroup/freezer/k/c/freezer.state" ||
		!slices.Equal(g.legacy, []string{"/sys/fs/cgroup/cpu,cpuacct/k/c", "/sys/fs/cgroup/freezer/k/c", "/sys/fs/cgroup/systemd/k/c"}) {
		t.Errorf("%+v %v", g, err)
	}
	v2 := parseHierarchies("35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	g, err = groupsOf("/k/c", v2, membership([]byte("0::/k/c\n")), membership([]byte("0::/own\n")))
	if err != nil || g.unified != "/sys/fs/cgroup/k/c" || g.freezer != "/sys/fs/cgroup/k/c/cgroup.freeze" {
		t.Errorf("%+v %v", g, err)
	}
	for _, c := range []struct{ path, of string }{
		{"/k/c", "0::/k/c/below\n"}, // it has moved itself
		{"/k/c", "0::/elsewhere\n"},
		{"/k/c", "0::/own\n"}, // in no group of its own
		{"", "0::/\n"},
		{"/", "0::/\n"},
	} {
		if _, err := groupsOf(c.path, v2, membership([]byte(c.of)), membership([]byte("0::/own\n"))); !refused(err, Groups) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestAProfileThatCannotBeWrittenIsRefused(t *testing.T) {
	for name, s := range map[string]*specs.LinuxSeccomp{
		"notify":       {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"bpf"}, Action: specs.ActNotify}}},
		"a listener":   {DefaultAction: specs.ActAllow, ListenerPath: "/x"},
		"architecture": {DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchS390X}},
		"a flag":       {DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagWaitKillableRecv}},
		"a name":       {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"a b"}, Action: specs.ActAllow}}},
		"an operator":  {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"a"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Op: "x"}}}}},
		"no default":   {Syscalls: []specs.LinuxSyscall{{Names: []string{"a"}, Action: specs.ActAllow}}},
	} {
		if text, err := profile(s); !refused(err, Seccomp) {
			t.Errorf("%s: %q %v", name, text, err)
		}
	}
}

// berth-seccomp was run anew for every process of a container whose filter cannot be made, and
// whoever asked while it ran waited for it longer than it had time.
func TestAFilterThatCannotBeMadeIsAskedForOnce(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = -v ] && echo 1.2.3 && exit\necho >>" + dir + "/runs\nexit 1\n"
	if err := os.WriteFile(dir+"/berth-seccomp", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFilters(dir)
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	for range 3 {
		if _, err := f.of(t.Context(), s, "1.2.3"); !refused(err, Seccomp) {
			t.Errorf("got %v", err)
		}
	}
	if runs, err := os.ReadFile(dir + "/runs"); string(runs) != "\n" {
		t.Errorf("it was run %d times, %v", len(runs), err)
	}
	f.turn <- struct{}{} // somebody waits for berth-seccomp
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.of(ctx, s, "1.2.3"); !refused(err, Seccomp) {
		t.Errorf("got %v", err)
	}
}

func TestTheProgramIsSealed(t *testing.T) {
	f, err := seal(strings.NewReader("program"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("it can be written to: %v", err)
	}
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("it can be cut: %v", err)
	}
	b := make([]byte, 7)
	if _, err := f.ReadAt(b, 0); err != nil || !bytes.Equal(b, []byte("program")) {
		t.Errorf("%q %v", b, err)
	}
}
