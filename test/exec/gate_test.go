// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/test/node"
)

// configurations are what containers are made with. Each is compared from inside and outside.
var configurations = []struct {
	name   string
	change func(s *specs.Spec, rootfs string)
	args   []string // nil: the probe
}{
	{name: "as berth makes them", change: func(*specs.Spec, string) {}},
	{name: "found by PATH", change: func(*specs.Spec, string) {}, args: []string{"found"}},
	{name: "arguments", change: func(*specs.Spec, string) {}, args: []string{"/probe", "", "", "with space", "ü", "-"}},
	{name: "relative to the directory", change: func(s *specs.Spec, _ string) { s.Process.Cwd = "/usr/bin" }, args: []string{"./found"}},
	{name: "PATH with what is not clean", change: func(s *specs.Spec, _ string) { s.Process.Env[0] = "PATH=/no//such:/usr/./bin/../bin/" }, args: []string{"found"}},
	{name: "variables twice", change: func(s *specs.Spec, _ string) {
		s.Process.Env = append(s.Process.Env, "A=1", "B=2", "A=3", "C=", "D==", "B=4")
	}},
	{name: "a long environment", change: func(s *specs.Spec, _ string) {
		s.Process.Env = append(s.Process.Env, "LONG="+strings.Repeat("x", 100000))
	}},
	{name: "a user", change: func(s *specs.Spec, _ string) { s.Process.User = specs.User{UID: 1234, GID: 99} }},
	{name: "a user with groups", change: func(s *specs.Spec, _ string) {
		s.Process.User = specs.User{UID: 1234, GID: 99, AdditionalGids: []uint32{7, 5678, 70000}}
	}},
	{name: "root with groups", change: func(s *specs.Spec, _ string) { s.Process.User.AdditionalGids = []uint32{1, 2, 3} }},
	{name: "a large user", change: func(s *specs.Spec, _ string) {
		s.Process.User = specs.User{UID: 4000000000, GID: 4000000001}
	}},
	{name: "a umask", change: func(s *specs.Spec, _ string) { s.Process.User.Umask = ptr(uint32(0o077)) }},
	{name: "no capabilities", change: func(s *specs.Spec, _ string) { s.Process.Capabilities = &specs.LinuxCapabilities{} }},
	{name: "all capabilities", change: func(s *specs.Spec, _ string) { s.Process.Capabilities = all() }},
	{name: "a user with all capabilities", change: func(s *specs.Spec, _ string) {
		s.Process.Capabilities, s.Process.User.UID = all(), 1000
	}},
	{name: "ambient capabilities", change: func(s *specs.Spec, _ string) {
		c := []string{"CAP_NET_RAW", "CAP_KILL"}
		s.Process.User.UID = 1000
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: some, Effective: c, Permitted: c, Inheritable: c, Ambient: c}
	}},
	{name: "ambient but not inheritable", change: func(s *specs.Spec, _ string) {
		s.Process.User.UID = 1000
		s.Process.Capabilities.Ambient = []string{"CAP_NET_RAW"}
	}},
	{name: "permitted but not bounding", change: func(s *specs.Spec, _ string) {
		s.Process.Capabilities.Bounding = []string{"CAP_KILL"}
	}},
	{name: "no new privileges", change: func(s *specs.Spec, _ string) { s.Process.NoNewPrivileges = true }},
	{name: "a user without new privileges", change: func(s *specs.Spec, _ string) {
		s.Process.NoNewPrivileges, s.Process.User.UID = true, 1000
	}},
	{name: "seccomp", change: func(s *specs.Spec, _ string) { s.Linux.Seccomp = allowList() }},
	{name: "seccomp without new privileges", change: func(s *specs.Spec, _ string) {
		s.Linux.Seccomp, s.Process.NoNewPrivileges, s.Process.User.UID = allowList(), true, 1000
	}},
	{name: "seccomp that denies some", change: func(s *specs.Spec, _ string) { s.Linux.Seccomp = denyList() }},
	{name: "seccomp with an error of its own", change: func(s *specs.Spec, _ string) {
		s.Linux.Seccomp = allowList()
		s.Linux.Seccomp.DefaultErrnoRet = ptr(uint(unix.ENOSYS))
	}},
	{name: "seccomp for one architecture, with flags", change: func(s *specs.Spec, _ string) {
		s.Linux.Seccomp = allowList()
		s.Linux.Seccomp.Architectures = s.Linux.Seccomp.Architectures[:1]
		s.Linux.Seccomp.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}
	}},
	{name: "seccomp with no flags", change: func(s *specs.Spec, _ string) {
		s.Linux.Seccomp = denyList()
		s.Linux.Seccomp.Flags = []specs.LinuxSeccompFlag{}
	}},
	// The OCI runtime has these limits, too, until it executes the program. A Go program reserves
	// about a GiB of addresses, and starts threads as it needs them: the limits leave room for
	// both, and the user has no other processes on this host that count.
	{name: "limits", change: func(s *specs.Spec, _ string) {
		s.Process.Rlimits = []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}, {Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NPROC", Soft: 500, Hard: 600},
			{Type: "RLIMIT_AS", Soft: 1 << 40, Hard: 1 << 41}, {Type: "RLIMIT_MEMLOCK", Soft: 4096, Hard: 8192}, {Type: "RLIMIT_STACK", Soft: 1 << 20, Hard: 1 << 20},
		}
		s.Process.User.UID = 61235
	}},
	{name: "higher limits than berth's", change: func(s *specs.Spec, _ string) {
		s.Process.Rlimits = []specs.POSIXRlimit{files()}
	}},
	{name: "the lowest OOM score", change: func(s *specs.Spec, _ string) {
		s.Process.OOMScoreAdj = ptr(0)
		if has(unix.CAP_SYS_RESOURCE) {
			s.Process.OOMScoreAdj = ptr(-998)
		}
	}},
	{name: "an OOM score of 1000", change: func(s *specs.Spec, _ string) { s.Process.OOMScoreAdj = ptr(1000) }},
	{name: "a directory", change: func(s *specs.Spec, _ string) { s.Process.Cwd = "/tmp" }},
	{name: "a directory that only the user may enter", change: func(s *specs.Spec, rootfs string) {
		_ = os.Chown(filepath.Join(rootfs, "closed"), 1000, 1000)
		s.Process.Cwd, s.Process.User = "/closed", specs.User{UID: 1000, GID: 1000}
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}},
	{name: "a directory that only root may enter", change: func(s *specs.Spec, _ string) {
		s.Process.Cwd, s.Process.User.UID = "/closed", 1000
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}},
	{name: "a cgroup namespace", change: func(s *specs.Spec, _ string) { with(s, specs.CgroupNamespace) }},
	{name: "the host's network", change: func(s *specs.Spec, _ string) { without(s, specs.NetworkNamespace) }},
	{name: "the host's processes", change: func(s *specs.Spec, _ string) { without(s, specs.PIDNamespace) }},
	{name: "the host's IPC", change: func(s *specs.Spec, _ string) { without(s, specs.IPCNamespace) }},
	{name: "the host's name", change: func(s *specs.Spec, _ string) {
		without(s, specs.UTSNamespace)
		s.Hostname = ""
	}},
	{name: "a user namespace", change: userns},
	{name: "a user in a user namespace", change: func(s *specs.Spec, rootfs string) {
		userns(s, rootfs)
		s.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{5, 6}}
	}},
	{name: "a user namespace with seccomp and limits", change: func(s *specs.Spec, rootfs string) {
		userns(s, rootfs)
		s.Linux.Seccomp, s.Process.NoNewPrivileges = allowList(), true
		s.Process.Rlimits = []specs.POSIXRlimit{files()}
	}},
	{name: "a root file system that cannot be written", change: func(s *specs.Spec, _ string) { s.Root.Readonly = true }},
	{name: "masked and read-only paths", change: func(s *specs.Spec, _ string) {
		s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/etc/passwd", "/dir")
		s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/tmp")
	}},
	{name: "limits of a group", change: func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: ptr(int64(64 << 20))},
			Pids:   &specs.LinuxPids{Limit: ptr(int64(20))},
			CPU:    &specs.LinuxCPU{Shares: ptr(uint64(2)), Quota: ptr(int64(20000)), Period: ptr(uint64(100000)), Cpus: "0"},
		}
	}},
	{name: "privileged", change: func(s *specs.Spec, _ string) {
		s.Process.Capabilities = all()
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	}},
	// Hostile ones.
	{name: "a /proc with hidden processes", change: func(s *specs.Spec, _ string) {
		s.Mounts[0].Options = append(s.Mounts[0].Options, "hidepid=2")
		s.Process.User.UID = 1000
	}},
	{name: "a list of passwords that never ends", change: func(_ *specs.Spec, rootfs string) {
		_ = os.Remove(filepath.Join(rootfs, "etc/passwd"))
		_ = os.Symlink("/dev/zero", filepath.Join(rootfs, "etc/passwd"))
	}},
}

// all are the capabilities that these tests have to give.
func all() *specs.LinuxCapabilities {
	names := strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID
		CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK
		CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT
		CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL
		CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON
		CAP_BPF CAP_CHECKPOINT_RESTORE`)
	var have []string
	for i, name := range names {
		if has(i) {
			have = append(have, name)
		}
	}
	return &specs.LinuxCapabilities{Bounding: have, Effective: have, Permitted: have}
}

// files is a limit above what this process may raise its own to, where it may give one.
func files() specs.POSIXRlimit {
	l := specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1048570, Hard: 1048576}
	var own unix.Rlimit
	if _ = unix.Getrlimit(unix.RLIMIT_NOFILE, &own); !has(unix.CAP_SYS_RESOURCE) {
		l.Soft, l.Hard = own.Max-1, own.Max
	}
	return l
}

func has(capability int) bool {
	set, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0)
	return err == nil && set == 1
}

func with(s *specs.Spec, n specs.LinuxNamespaceType) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: n})
}

func without(s *specs.Spec, n specs.LinuxNamespaceType) {
	var left []specs.LinuxNamespace
	for _, ns := range s.Linux.Namespaces {
		if ns.Type != n {
			left = append(left, ns)
		}
	}
	s.Linux.Namespaces = left
}

func userns(s *specs.Spec, rootfs string) {
	with(s, specs.UserNamespace)
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 200000, Size: 65536}}
	s.Linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 300000, Size: 65536}}
	_ = filepath.Walk(rootfs, func(p string, _ os.FileInfo, _ error) error { return os.Lchown(p, 200000, 300000) })
}

// laboratory are the directories that make what the gate compares. As long as they stand as they
// are, a commit compares one of so many parts of the configurations.
var laboratory = []string{"join", "internal/serve/join", "test/exec", "tools/programs/go.mod"}

const parts = 4

// PROPERTIES 45, the gate: a program finds the same by either way.
func TestAProgramFindsWhatItFindsByTheOCIRuntime(t *testing.T) {
	for _, c := range node.Share(t, "configurations", parts, laboratory, configurations...) {
		t.Run(c.name, func(t *testing.T) {
			ct := start(t, c.change)
			args := c.args
			if args == nil {
				args = []string{"/probe"}
			}
			for _, how := range []string{"report", "kill"} {
				args := append(args[:1:1], append([]string{how}, args[1:]...)...)
				want, wantCode, err := ct.inside(byOCI, args...)
				if err != nil {
					t.Fatal(err)
				}
				again, _, err := ct.inside(byOCI, args...)
				if d := ct.differences(want, again); err != nil || d != "" {
					t.Fatalf("the OCI runtime alone does not say the same twice: %v %s", err, d)
				}
				got, code, err := ct.inside(byHelper, args...)
				if err != nil {
					t.Fatal(err)
				}
				if d := ct.differences(want, got); d != "" || code != wantCode || len(want) < 50 {
					t.Errorf("%s: code %d, by the OCI runtime %d%s", how, code, wantCode, d)
				}
			}
			args = append(args[:1:1], append([]string{"hold"}, args[1:]...)...)
			want, again, got := ct.outside(byOCI, args...), ct.outside(byOCI, args...), ct.outside(byHelper, args...)
			if d := ct.differences(want, again); d != "" {
				t.Fatalf("the OCI runtime alone is not the same twice: %s", d)
			}
			if d := ct.differences(want, got); d != "" {
				t.Errorf("from outside:%s", d)
			}
		})
	}
}

// PROPERTIES 45: crun leaves the OOM score and the session keyring as those of the shim.
func TestAProgramHasTheOOMScoreOfItsContainerAndAKeyring(t *testing.T) {
	ct := start(t, func(*specs.Spec, string) {})
	keyring := "_ses." + ct.id
	if ct.by.Name == "crun" {
		keyring = ct.id
	}
	got, _, err := ct.inside(byHelper, "/probe", "report")
	if err != nil {
		t.Fatal(err)
	}
	has := func(begin, end string) bool {
		return slices.ContainsFunc(got, func(l string) bool { return strings.HasPrefix(l, begin) && strings.HasSuffix(l, end) })
	}
	if !has("/proc/self/oom_score_adj: ", " 500") || !has("keyring: ", ";"+keyring) {
		t.Errorf("it finds %q", got)
	}
}

// PROPERTIES 45: berth-exec handed on to the program that berth ignored SIGHUP, which nohup does.
// A probe's program would not end when its terminal or its session does.
func TestAProgramIgnoresNoSignalThatBerthIgnores(t *testing.T) {
	ct := start(t, func(*specs.Spec, string) {})
	signal.Ignore(unix.SIGHUP, unix.SIGINT)
	t.Cleanup(func() {
		signal.Reset(unix.SIGHUP, unix.SIGINT)
		handleSignals()
	})
	got, _, err := ct.inside(byHelper, "/probe", "report")
	if err != nil || len(got) < 50 {
		t.Fatalf("%v: %q", err, got)
	}
	for _, line := range got {
		if strings.HasPrefix(line, "signal ") {
			t.Errorf("it finds %s", line)
		}
	}
}
