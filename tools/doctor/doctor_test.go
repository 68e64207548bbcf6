// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
)

// now is the time of every planted machine.
var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// planted is a machine in a directory, on which nothing is wrong until something is planted.
type planted struct {
	Host
	t *testing.T
}

const goodRunc = `{"mountOptions":["ro","rro"],"linux":{"seccomp":{"enabled":true},"cgroup":{"systemd":true},"mountExtensions":{"idmap":{"enabled":true}}}}`

const goodUnit = `[Service]
ExecStart=/usr/local/bin/berth serve
Restart=always
KillMode=process
Delegate=yes
FileDescriptorStoreMax=4096
OOMScoreAdjust=-999
LimitNOFILE=1048576
TasksMax=infinity
`

const goodCNI = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}`

const goodKubelet = `kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/berth/berth.sock
cgroupDriver: cgroupfs
`

const goodMounts = `1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw
2 1 0:2 / /run rw,nosuid,nodev shared:2 - tmpfs tmpfs rw
3 1 0:3 / /sys/fs/cgroup rw shared:3 - cgroup2 cgroup2 rw
`

func healthy(t *testing.T) *planted {
	t.Helper()
	p := &planted{t: t}
	p.Host = Host{
		Root:          t.TempDir(),
		ConfigFile:    "/etc/berth/config.toml",
		KubeletConfig: "/var/lib/kubelet/config.yaml",
		Libexec:       []string{"/usr/local/libexec/berth"},
		Endpoint:      "/run/berth/berth.sock",
		Version:       "v2",
		Runs:          p.runs("runc version 1.4.1\n", goodRunc),
		CRI:           func(context.Context, string) (string, error) { return "", errNoCRI },
		Statfs: func(string) (FS, error) {
			return FS{Type: unix.EXT4_SUPER_MAGIC, Bytes: 100 << 30, Free: 50 << 30, Files: 1000, FreeFiles: 500}, nil
		},
		Sync:         func(string) (time.Duration, error) { return time.Millisecond, nil },
		Synchronised: func() (bool, error) { return true, nil },
		Pidfd:        func() error { return nil },
		Now:          func() time.Time { return now },
	}
	p.answers(&runtimeapi.StatusResponse{})
	p.put("/etc/berth/config.toml", "")
	for path, text := range map[string]string{
		"/proc/sys/kernel/osrelease":                   "6.18.2-cloud",
		"/proc/filesystems":                            "nodev\tproc\n\text4\nnodev\toverlay\n",
		"/proc/sys/user/max_user_namespaces":           "100000",
		"/proc/sys/kernel/seccomp/actions_avail":       "kill_process errno allow",
		"/proc/self/mountinfo":                         goodMounts,
		"/proc/sys/kernel/pid_max":                     "4194304",
		"/proc/sys/fs/inotify/max_user_instances":      "8192",
		"/proc/sys/fs/inotify/max_user_watches":        "1048576",
		"/proc/sys/fs/file-max":                        "9223372036854775807",
		"/proc/sys/net/ipv4/ip_forward":                "1",
		"/proc/sys/net/bridge/bridge-nf-call-iptables": "1",
		"/proc/net/tcp":                                "  sl  local_address rem_address   st\n",
		"/proc/net/tcp6":                               "  sl  local_address rem_address   st\n",
		"/proc/swaps":                                  "Filename\tType\tSize\tUsed\tPriority\n",
		"/sys/fs/cgroup/cgroup.controllers":            "cpuset cpu io memory hugetlb pids",
		"/sys/module/apparmor/parameters/enabled":      "Y",
		"/etc/systemd/system/berth.service":            goodUnit,
		"/etc/cni/net.d/10-pods.conflist":              goodCNI,
		"/var/lib/kubelet/config.yaml":                 goodKubelet,
		"/var/lib/berth/berth.db":                      "",
		"/run/berth/berth.sock":                        "",
		"/run/systemd/system/.keep":                    "",
	} {
		p.put(path, text)
	}
	for _, program := range []string{
		"/usr/sbin/apparmor_parser",
		"/usr/local/libexec/berth/pause",
		"/usr/local/libexec/berth/containerd-shim-runc-v2",
		"/usr/local/libexec/berth/berth-logger",
		"/usr/local/libexec/berth/runc",
		"/usr/local/libexec/berth/cni/loopback",
		"/opt/cni/bin/bridge",
		"/opt/cni/bin/host-local",
		"/opt/cni/bin/portmap",
		"/opt/cni/bin/loopback",
	} {
		p.put(program, "")
		p.mode(program, 0o755)
	}
	return p
}

func (p *planted) put(path, text string) {
	p.t.Helper()
	at := filepath.Join(p.Root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *planted) mode(path string, mode fs.FileMode) {
	p.t.Helper()
	if err := os.Chmod(filepath.Join(p.Root, path), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *planted) remove(path string) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.Root, path)); err != nil {
		p.t.Fatal(err)
	}
}

// unreadable puts a directory where a file should be: reading it fails, also for root.
func (p *planted) unreadable(path string) {
	p.t.Helper()
	p.remove(path)
	if err := os.MkdirAll(filepath.Join(p.Root, path), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *planted) link(to, path string) {
	p.t.Helper()
	at := filepath.Join(p.Root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at)); err != nil {
		p.t.Fatal(err)
	}
}

// runs is an OCI runtime that answers so.
func (p *planted) runs(version, features string) func(context.Context, string, ...string) ([]byte, error) {
	return func(_ context.Context, name string, args ...string) ([]byte, error) {
		switch out := map[string]string{"--version": version, "features": features}[args[0]]; out {
		case "":
			return nil, fmt.Errorf("run %s %s: exit status 1", name, args[0])
		default:
			return []byte(out), nil
		}
	}
}

// answers plants a berth that runs.
func (p *planted) answers(st *runtimeapi.StatusResponse) {
	p.Status = func(context.Context) (*runtimeapi.StatusResponse, error) { return st, nil }
}

// away plants that no berth runs.
func (p *planted) away() {
	p.Status = func(context.Context) (*runtimeapi.StatusResponse, error) {
		return nil, &net.OpError{Op: "dial", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ENOENT}}
	}
}

func (p *planted) listens(file, address, inode string) {
	p.put(file, "  sl  local_address rem_address   st\n"+
		"   0: "+address+" 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "+inode+" 1\n")
}

// pair plants a certificate and its key.
func (p *planted) pair(cert, key string, from, to time.Time) {
	p.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		p.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		p.t.Fatal(err)
	}
	p.put(cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	p.put(key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})))
}

const streams = "[streams]\naddress = '10.0.0.5:10010'\ncert_file = '/etc/berth/s.crt'\nkey_file = '/etc/berth/s.key'\n"

const peers = "[image.peer]\naddress = '10.0.0.5:5443'\nca_file = '/etc/berth/ca.crt'\ncert_file = '/etc/berth/s.crt'\nkey_file = '/etc/berth/s.key'\n"

func (p *planted) statfs(change func(*FS)) {
	good := p.Statfs
	p.Statfs = func(path string) (FS, error) {
		fs, err := good(path)
		change(&fs)
		return fs, err
	}
}

// year is a validity around now.
func year() (from, to time.Time) { return now.AddDate(0, -6, 0), now.AddDate(0, 6, 0) }

// misconfigurations are what may be wrong with a machine: what is planted, which check finds it,
// how bad it is, and the words of the finding and of the remedy.
var misconfigurations = []struct {
	name  string
	plant func(p *planted)
	check string
	s     Severity
	what  string
	do    string
}{
	{"no berth runs", func(p *planted) { p.away() },
		"service", Note, "no berth runs on /run/berth/berth.sock", "systemctl start berth"},
	{"berth is not ready", func(p *planted) {
		p.answers(&runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "NetworkReady", Message: "no CNI"}}}})
	}, "service", Error, "NetworkReady is false: no CNI", "journalctl -u berth"},
	{"berth warns", func(p *planted) {
		p.answers(&runtimeapi.StatusResponse{Info: map[string]string{"warnings": `["the policy is broken"]`}})
	}, "service", Warning, "berth warns: the policy is broken", "berth status"},
	{"an older berth runs", func(p *planted) {
		p.answers(&runtimeapi.StatusResponse{Info: map[string]string{"version": `"v1"`}})
	}, "service", Note, "the berth that runs is v1, and this program is v2", "restart berth"},

	{"a rule is left in the firewall that the host does not use any more", func(p *planted) {
		p.put("/usr/sbin/iptables-legacy", "")
		p.put("/proc/net/ip_tables_names", "filter\nnat\n")
		p.Pods = func(context.Context) ([]string, error) { return []string{strings.Repeat("a", 64)}, nil }
		runs := p.Runs
		p.Runs = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			if name != "/usr/sbin/iptables-legacy" {
				return runs(ctx, name, args...)
			}
			rule := `-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"berth\" id: \"%s\"" -m multiport --dports 8080 -j CNI-DN-1` + "\n"
			return fmt.Appendf(nil, rule+rule, strings.Repeat("a", 64), strings.Repeat("b", 64)), nil
		}
	}, "host ports", Warning, "iptables-legacy publishes ports of the pod bbbbbbbbbbbb, which is not there", "iptables-legacy -t nat -D CNI-HOSTPORT-DNAT -p tcp"},

	{"the configuration is not TOML", func(p *planted) { p.put("/etc/berth/config.toml", "root = \n") },
		"configuration", Error, "berth cannot start with /etc/berth/config.toml", "berth config check"},
	{"a setting is misspelt", func(p *planted) { p.put("/etc/berth/config.toml", "[network]\nconf_dirs = '/x'\n") },
		"configuration", Error, "conf_dirs", "berth config default"},
	{"a value cannot work", func(p *planted) { p.put("/etc/berth/config.toml", "state = 'run'\n") },
		"configuration", Error, `"run" is not an absolute path`, "correct it"},
	{"others may write the configuration", func(p *planted) { p.mode("/etc/berth/config.toml", 0o666) },
		"configuration", Warning, "/etc/berth/config.toml has the mode 666", "chmod 600"},
	{"the named configuration is missing", func(p *planted) { p.remove("/etc/berth/config.toml"); p.Named = true },
		"configuration", Error, "there is no configuration /etc/berth/config.toml", "name a file that exists"},
	{"others may write the policy", func(p *planted) {
		p.put("/etc/berth/policy.toml", "")
		p.mode("/etc/berth/policy.toml", 0o666)
		p.put("/etc/berth/config.toml", "[image]\npolicy_file = '/etc/berth/policy.toml'\n")
	}, "configuration", Warning, "decides which images run", "chmod go-w /etc/berth/policy.toml"},
	{"the policy is missing", func(p *planted) {
		p.put("/etc/berth/config.toml", "[image]\npolicy_file = '/etc/berth/policy.toml'\n")
	}, "configuration", Error, "image.policy_file is /etc/berth/policy.toml, which does not exist", "put it there"},
	// PROPERTIES 66: a mistake in hosts.toml was found by the pull that it stops.
	{"a mistake in hosts.toml", func(p *planted) {
		p.put("/etc/berth/config.toml", "[image]\nregistry_dir = '/etc/certs.d'\n")
		p.put("/etc/certs.d/registry.example/hosts.toml", "server = 'https://a'\n[host.'https://b']\ncapability = ['pull']\n")
	}, "configuration", Error, "/etc/certs.d/registry.example/hosts.toml, line 3: there is no setting", "correct the file"},

	{"berth's programs are missing", func(p *planted) { p.remove("/usr/local/libexec/berth") },
		"programs", Error, "in none of /usr/local/libexec/berth: berth cannot start", "make install"},
	{"the shim is missing", func(p *planted) { p.remove("/usr/local/libexec/berth/containerd-shim-runc-v2") },
		"programs", Error, "no container starts", "make install"},
	{"berth-logger is not executable", func(p *planted) { p.mode("/usr/local/libexec/berth/berth-logger", 0o644) },
		"programs", Warning, "output that containers write while berth is away can be lost", "chmod 755"},

	{"runc is missing", func(p *planted) { p.remove("/usr/local/libexec/berth/runc") },
		"handlers", Error, "runc, the OCI runtime of the handler runc, is in none of", "make install"},
	{"crun is missing", func(p *planted) {
		p.put("/etc/berth/config.toml", "[runtimes.crun]\ntype = 'io.containerd.runc.v2'\nbinary = '/usr/bin/crun'\n")
	}, "handlers", Error, "/usr/bin/crun, the OCI runtime of the handler crun, is missing", "install it"},
	{"crun is there and not used", func(p *planted) {
		p.put("/usr/bin/crun", "")
		p.Runs = p.runs("crun version 1.21\n", goodRunc)
	}, "handlers", Note, "/usr/bin/crun is crun 1.21, which starts containers sooner than runc", "docs/runtimes.md"},
	{"runc is not executable", func(p *planted) { p.mode("/usr/local/libexec/berth/runc", 0o644) },
		"handlers", Error, "is not executable", "chmod 755 /usr/local/libexec/berth/runc"},
	{"runc has known holes", func(p *planted) { p.Runs = p.runs("runc version 1.1.12\n", goodRunc) },
		"handlers", Error, "is runc 1.1.12, out of which containers can break (CVE-", "install 1.2.8"},
	{"runc has no seccomp", func(p *planted) {
		p.Runs = p.runs("runc version 1.4.1\n", strings.Replace(goodRunc, `{"enabled":true}`, `{"enabled":false}`, 1))
	}, "handlers", Error, "has no seccomp", "libseccomp"},
	{"runc cannot map owners", func(p *planted) { p.Runs = p.runs("runc version 1.4.1\n", `{"mountOptions":["rro"],"linux":{}}`) },
		"handlers", Warning, "hostUsers: false are refused", "runc 1.2"},
	{"runc has no recursive read-only mounts", func(p *planted) {
		p.Runs = p.runs("runc version 1.4.1\n", strings.Replace(goodRunc, `,"rro"`, "", 1))
	}, "handlers", Warning, "cannot mount read-only recursively", "runc 1.1"},
	{"systemd is asked for cgroups and does not run", func(p *planted) {
		p.put("/etc/berth/config.toml", "[runtimes.runc]\ntype = 'io.containerd.runc.v2'\nsystemd_cgroup = true\n")
		p.put("/var/lib/kubelet/config.yaml", strings.Replace(goodKubelet, "cgroupfs", "systemd", 1))
		p.remove("/run/systemd/system")
	}, "handlers", Error, "systemd does not run here", "set runtimes.runc.systemd_cgroup to false"},
	{"a snapshotter is away", func(p *planted) {
		p.put("/etc/berth/config.toml", "[snapshotters.stargz]\naddress = '/run/stargz.sock'\n")
	}, "handlers", Error, "the snapshotter stargz does not answer at /run/stargz.sock", "start it"},

	{"the kernel is too old", func(p *planted) { p.put("/proc/sys/kernel/osrelease", "5.4.0-90-generic") },
		"kernel", Error, "Linux 5.4.0-90-generic: berth needs 5.6", "boot Linux 5.6"},
	{"the kernel reports no exit codes", func(p *planted) { p.put("/proc/sys/kernel/osrelease", "6.1.0-37-amd64") },
		"kernel", Note, "does not report exit codes", "boot Linux 6.15"},
	{"there are no pidfds", func(p *planted) { p.Pidfd = func() error { return fmt.Errorf("pidfd_open: %w", unix.ENOSYS) } },
		"kernel", Error, "the kernel has no pidfds", "seccomp filter"},
	{"there is no overlayfs", func(p *planted) { p.put("/proc/filesystems", "nodev\tproc\n\text4\n") },
		"kernel", Error, "the kernel has no overlayfs", "install the kernel's modules"},
	{"user namespaces are off", func(p *planted) { p.put("/proc/sys/user/max_user_namespaces", "0") },
		"kernel", Warning, "user namespaces are off", "user.max_user_namespaces"},
	{"there is no seccomp", func(p *planted) { p.remove("/proc/sys/kernel/seccomp") },
		"kernel", Error, "no seccomp filters", "CONFIG_SECCOMP_FILTER"},

	{"no cgroups are mounted", func(p *planted) {
		p.put("/proc/self/mountinfo", strings.Replace(goodMounts, "cgroup2 cgroup2", "tmpfs tmpfs", 1))
	},
		"cgroups", Error, "no cgroups are mounted", "mount cgroup2"},
	{"the memory controller is off", func(p *planted) { p.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids") },
		"cgroups", Error, "the cgroup controller memory is missing: memory limits do not hold", "cgroup_disable=memory"},
	{"the pids controller of v1 is off", func(p *planted) {
		var text strings.Builder
		text.WriteString("1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw\n2 1 0:2 / /run rw shared:2 - tmpfs tmpfs rw\n")
		for i, name := range []string{"memory", "cpu,cpuacct", "cpuset", "blkio", "freezer", "devices"} {
			fmt.Fprintf(&text, "%d 1 0:%d / /sys/fs/cgroup/%s rw shared:%d - cgroup cgroup rw,%s\n", i+3, i+3, name, i+3, name)
		}
		p.put("/proc/self/mountinfo", text.String())
	}, "cgroups", Error, "the cgroup controller pids is missing", "cgroup_disable=pids"},
	{"hugepages are required", func(p *planted) {
		p.put("/etc/berth/config.toml", "[pod]\nrequire_hugetlb = true\n")
		p.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
	}, "cgroups", Warning, "no controller hugetlb", "pod.require_hugetlb"},

	{"AppArmor lacks its parser", func(p *planted) { p.remove("/usr/sbin/apparmor_parser") },
		"security modules", Error, "apparmor_parser is missing", "install apparmor_parser"},
	{"SELinux lacks the policy for containers", func(p *planted) {
		p.put("/sys/fs/selinux/enforce", "1")
		p.put("/etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n")
	}, "security modules", Error, "SELinux enforces a policy without types for containers", "container-selinux"},

	{"root is on NFS", func(p *planted) { p.statfs(func(f *FS) { f.Type = unix.NFS_SUPER_MAGIC }) },
		"mounts", Error, "/var/lib/berth is on NFS", "ext4"},
	{"root is noexec", func(p *planted) { p.statfs(func(f *FS) { f.Flags = unix.ST_NOEXEC }) },
		"mounts", Error, "/var/lib/berth is mounted with noexec", "mount it without noexec"},
	{"root is read-only", func(p *planted) { p.statfs(func(f *FS) { f.Flags = unix.ST_RDONLY }) },
		"mounts", Error, "/var/lib/berth is mounted with ro", "mount it without ro"},
	{"root is nosuid", func(p *planted) { p.statfs(func(f *FS) { f.Flags = unix.ST_NOSUID }) },
		"mounts", Warning, "sudo", "mount it without nosuid"},
	{"run is on the disk", func(p *planted) {
		p.put("/proc/self/mountinfo", strings.Replace(goodMounts, "- tmpfs tmpfs", "- xfs /dev/vdb", 1))
	}, "mounts", Warning, "/run/berth is on xfs and not on a tmpfs", "mount a tmpfs on /run"},
	{"mounts are private", func(p *planted) { p.put("/proc/self/mountinfo", strings.Replace(goodMounts, " shared:1", "", 1)) },
		"mounts", Warning, "the mount / is not shared", "mount --make-rshared /"},

	{"the disk is nearly full", func(p *planted) { p.statfs(func(f *FS) { f.Free = f.Bytes / 20 }) },
		"disk space", Warning, "5.0 % of its room left, 5120 MiB", "berth images prune"},
	{"the disk is full", func(p *planted) { p.statfs(func(f *FS) { f.Free = 0 }) },
		"disk space", Error, "0.0 % of its room left", "berth df"},
	{"the disk is out of inodes", func(p *planted) { p.statfs(func(f *FS) { f.FreeFiles = 5 }) },
		"disk space", Error, "0.5 % of its inodes left, 5", "berth images prune"},

	{"the disk is slow", func(p *planted) { p.Sync = func(string) (time.Duration, error) { return 300 * time.Millisecond, nil } },
		"disk latency", Warning, "takes 300ms to make 4 KiB durable", "a disk of its own"},
	{"the disk is broken", func(p *planted) {
		p.Sync = func(string) (time.Duration, error) { return 0, &fs.PathError{Op: "sync", Path: "x", Err: syscall.EIO} }
	}, "disk latency", Error, "an error of the disk", "the kernel's log"},

	{"the clock is not synchronised", func(p *planted) { p.Synchronised = func() (bool, error) { return false, nil } },
		"clock", Warning, "the clock is not synchronised", "chrony"},
	{"the clock is in the past", func(p *planted) { p.Now = func() time.Time { return time.Unix(86400, 0) } },
		"clock", Error, "the clock says 1970-01-02", "set the clock"},

	{"few processes are allowed", func(p *planted) { p.put("/proc/sys/kernel/pid_max", "32768") },
		"limits", Warning, "kernel.pid_max is 32768", "set kernel.pid_max in /etc/sysctl.d"},
	{"few watches are allowed", func(p *planted) { p.put("/proc/sys/fs/inotify/max_user_instances", "128") },
		"limits", Warning, "fs.inotify.max_user_instances is 128", "to 512 at least"},

	{"the unit kills the shims", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "KillMode=process\n", "", 1))
	}, "unit", Error, "systemd kills the shims of all pods", "KillMode=process"},
	{"a drop-in kills the shims", func(p *planted) {
		p.put("/etc/systemd/system/berth.service.d/10-kill.conf", "[Service]\nKillMode=mixed\n")
	}, "unit", Error, "the unit's KillMode is mixed", "KillMode=process"},
	{"the unit does not delegate", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "Delegate=yes", "Delegate=no", 1))
	}, "unit", Warning, "does not delegate", "Delegate=yes"},
	{"the OOM killer may take berth", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "OOMScoreAdjust=-999\n", "", 1))
	}, "unit", Warning, "the OOM killer may take berth", "OOMScoreAdjust=-999"},
	{"the unit limits tasks", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "TasksMax=infinity", "TasksMax=4915", 1))
	}, "unit", Warning, `TasksMax is "4915"`, "TasksMax=infinity"},
	{"the unit limits open files", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "LimitNOFILE=1048576", "LimitNOFILE=1024:524288", 1))
	}, "unit", Warning, `LimitNOFILE is "1024:524288"`, "LimitNOFILE=1048576"},
	{"the unit keeps no descriptors", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "FileDescriptorStoreMax=4096\n", "", 1))
	}, "unit", Warning, "keeps no descriptors", "FileDescriptorStoreMax=4096"},
	{"the unit does not restart berth", func(p *planted) {
		p.put("/etc/systemd/system/berth.service", strings.Replace(goodUnit, "Restart=always\n", "", 1))
	}, "unit", Warning, "a berth that crashes stays away", "Restart=always"},

	{"there is no CNI configuration", func(p *planted) {
		p.remove("/etc/cni/net.d")
		p.put("/etc/berth/config.toml", "[network]\nuse_default = false\n")
	}, "network", Error, "there is no CNI configuration in /etc/cni/net.d", "install the network provider"},
	{"a cluster's node is on berth's bridge", func(p *planted) { p.remove("/etc/cni/net.d") },
		"network", Warning, "which other nodes do not reach", "install the network provider"},
	{"the CNI configuration is not JSON", func(p *planted) { p.put("/etc/cni/net.d/10-pods.conflist", "{oops") },
		"network", Error, "/etc/cni/net.d/10-pods.conflist cannot be used: it is not valid JSON", "correct it"},
	{"a CNI configuration is skipped", func(p *planted) { p.put("/etc/cni/net.d/05-first.conflist", "{oops") },
		"network", Warning, "/etc/cni/net.d/05-first.conflist is skipped, and /etc/cni/net.d/10-pods.conflist is used instead", "correct it, or remove it"},
	{"a CNI plug-in is missing", func(p *planted) { p.remove("/opt/cni/bin/host-local") },
		"network", Error, "the CNI plug-in host-local is in none of /opt/cni/bin", "network.bin_dirs"},
	{"a CNI plug-in is not executable", func(p *planted) { p.mode("/opt/cni/bin/bridge", 0o644) },
		"network", Error, "the CNI plug-in /opt/cni/bin/bridge is not executable", "chmod 755 /opt/cni/bin/bridge"},
	{"a CNI version is unknown", func(p *planted) {
		p.put("/etc/cni/net.d/10-pods.conflist", strings.Replace(goodCNI, "1.0.0", "9.0.0", 1))
	}, "network", Error, "its cniVersion 9.0.0 is none of those that berth speaks", "correct it"},

	{"nothing is forwarded", func(p *planted) { p.put("/proc/sys/net/ipv4/ip_forward", "0") },
		"forwarding", Error, "the kernel forwards no packets", "net.ipv4.ip_forward"},
	{"br_netfilter is not loaded", func(p *planted) { p.remove("/proc/sys/net/bridge") },
		"forwarding", Warning, "br_netfilter is not loaded", "modprobe br_netfilter"},

	{"another process has the port of metrics", func(p *planted) {
		p.put("/etc/berth/config.toml", "[metrics]\naddress = '127.0.0.1:9100'\n")
		p.listens("/proc/net/tcp", "00000000:238C", "777")
		p.link("socket:[777]", "/proc/123/fd/5")
		p.put("/proc/123/comm", "node_exporter\n")
	}, "ports", Error, "metrics.address is 127.0.0.1:9100, where node_exporter (process 123) listens already", "set metrics.address"},
	{"another process has the port of streams", func(p *planted) {
		p.Status = nil
		p.put("/etc/berth/config.toml", "[streams]\naddress = '[::1]:10010'\n")
		p.listens("/proc/net/tcp6", "00000000000000000000000001000000:271A", "778")
	}, "ports", Error, "streams.address is [::1]:10010, where another process listens already", "set streams.address"},

	{"the certificate of streams has ended", func(p *planted) {
		p.put("/etc/berth/config.toml", streams)
		p.pair("/etc/berth/s.crt", "/etc/berth/s.key", now.AddDate(-1, 0, 0), now.AddDate(0, 0, -1))
	}, "certificates", Error, "the certificate /etc/berth/s.crt has ended on 2026-05-31", "renew it"},
	{"the certificate of streams ends soon", func(p *planted) {
		p.put("/etc/berth/config.toml", streams)
		p.pair("/etc/berth/s.crt", "/etc/berth/s.key", now.AddDate(-1, 0, 0), now.AddDate(0, 0, 3).Add(time.Minute))
	}, "certificates", Warning, "the certificate /etc/berth/s.crt ends in 3 days", "renew it"},
	{"the key of streams is readable", func(p *planted) {
		p.put("/etc/berth/config.toml", streams)
		from, to := year()
		p.pair("/etc/berth/s.crt", "/etc/berth/s.key", from, to)
		p.mode("/etc/berth/s.key", 0o644)
	}, "certificates", Warning, "the key /etc/berth/s.key has the mode 644", "chmod 600 /etc/berth/s.key"},
	{"the key is of another certificate", func(p *planted) {
		p.put("/etc/berth/config.toml", streams)
		from, to := year()
		p.pair("/etc/berth/s.crt", "/etc/berth/s.key", from, to)
		p.pair("/etc/berth/other.crt", "/etc/berth/s.key", from, to)
	}, "certificates", Error, "cannot be used together", "its own key"},
	{"the certificate of streams is missing", func(p *planted) { p.put("/etc/berth/config.toml", streams) },
		"certificates", Error, "streams.cert_file is /etc/berth/s.crt, which does not exist", "put it there"},
	{"the authority of peers is no certificate", func(p *planted) {
		p.put("/etc/berth/config.toml", peers)
		from, to := year()
		p.pair("/etc/berth/s.crt", "/etc/berth/s.key", from, to)
		p.put("/etc/berth/ca.crt", "oops")
	}, "certificates", Error, "image.peer.ca_file is /etc/berth/ca.crt, which has no certificate in PEM", "renew it"},

	{"the kubelet's file is not YAML", func(p *planted) { p.put("/var/lib/kubelet/config.yaml", "a: [") },
		"kubelet", Error, "cannot be read as the kubelet's configuration", "correct it"},
	{"the kubelet uses containerd", func(p *planted) {
		p.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
	}, "kubelet", Error, "the kubelet's runtime is unix:///run/containerd/containerd.sock, by /var/lib/kubelet/config.yaml", "unix:///run/berth/berth.sock"},
	{"kubeadm's flags name CRI-O", func(p *planted) {
		p.put(kubeadmFlags, `KUBELET_KUBEADM_ARGS="--node-ip=10.0.0.5 --container-runtime-endpoint=unix:///var/run/crio/crio.sock"`)
	}, "kubelet", Error, "by " + kubeadmFlags, "docs/migrate.md"},
	{"the kubelet names no runtime", func(p *planted) { p.put("/var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n") },
		"kubelet", Error, "names no containerRuntimeEndpoint", "put containerRuntimeEndpoint: unix:///run/berth/berth.sock"},
	{"the cgroup drivers differ", func(p *planted) {
		p.put("/var/lib/kubelet/config.yaml", strings.Replace(goodKubelet, "cgroupfs", "systemd", 1))
	}, "kubelet", Error, "the kubelet's cgroup driver is systemd and berth's is cgroupfs", "runtimes.runc.systemd_cgroup to true"},

	{"swap is on", func(p *planted) {
		p.put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/vdb1   partition\t1\t0\t-2\n")
	}, "swap", Error, "swap is on (/dev/vdb1)", "swapoff -a"},

	{"containerd serves CRI", func(p *planted) {
		p.put("/run/containerd/containerd.sock", "")
		p.CRI = func(context.Context, string) (string, error) { return "containerd v2.1.0", nil }
	}, "other runtimes", Warning, "another runtime, containerd v2.1.0, serves CRI on /run/containerd/containerd.sock", "systemctl disable --now containerd.service"},
	{"CRI-O is enabled", func(p *planted) {
		p.link("/usr/lib/systemd/system/crio.service", "/etc/systemd/system/multi-user.target.wants/crio.service")
	}, "other runtimes", Warning, "crio.service is enabled", "systemctl disable --now crio.service"},
	{"a socket of CRI-O is left", func(p *planted) {
		p.put("/run/crio/crio.sock", "")
		p.CRI = func(context.Context, string) (string, error) { return "", syscall.ECONNREFUSED }
	}, "other runtimes", Note, "/run/crio/crio.sock is a socket that nobody serves", "remove it"},
}

func TestNothingIsWrongWithAHealthyMachine(t *testing.T) {
	p := healthy(t)
	r := Examine(t.Context(), p.Host)
	for _, a := range r.Answers {
		if len(a.Findings) > 0 || a.NotAsked != "" {
			t.Errorf("%s: %+v", a.Check, a)
		}
	}
	// The healthy machine has no ports, no certificates and no iptables.
	if well := r.Well(); well != len(checks)-3 {
		t.Errorf("%d checks found nothing wrong", well)
	}
	if len(r.Answers) != len(checks) {
		t.Errorf("%d checks of %d have answered", len(r.Answers), len(checks))
	}
}

// Each of the misconfigurations is found by its check alone, with the words that say what helps.
func TestEachMisconfigurationIsNamedWithItsRemedy(t *testing.T) {
	if len(misconfigurations) < 25 {
		t.Fatalf("only %d are planted", len(misconfigurations))
	}
	for _, mc := range misconfigurations {
		t.Run(mc.name, func(t *testing.T) {
			p := healthy(t)
			mc.plant(p)
			found := false
			for _, a := range Examine(t.Context(), p.Host).Answers {
				if a.NotAsked != "" {
					t.Errorf("%s could not ask: %s", a.Check, a.NotAsked)
				}
				for _, f := range a.Findings {
					if a.Check == mc.check && f.Severity == mc.s && strings.Contains(f.What, mc.what) && strings.Contains(f.Do, mc.do) {
						found = true
					}
					if f.Do == "" || strings.Contains(f.What+f.Do, p.Root) || strings.Contains(f.What+f.Do, "%!") {
						t.Errorf("%s: %s; %s", a.Check, f.What, f.Do)
					}
					if a.Check != mc.check {
						t.Errorf("%s found %+v, which was not planted", a.Check, f)
					}
				}
				if a.Check == mc.check && !found {
					t.Errorf("not found; the check said %+v", a)
				}
			}
			if !found {
				t.Errorf("there is no check %s", mc.check)
			}
		})
	}
}

// Whatever cannot be asked is neither well nor wrong.
func TestWhatCannotBeAskedIsNoAnswer(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(p *planted)
		check string
		why   string
	}{
		{"berth does not answer", func(p *planted) {
			p.Status = func(context.Context) (*runtimeapi.StatusResponse, error) { return nil, context.DeadlineExceeded }
		}, "service", "deadline"},
		{"the socket is closed to us", func(p *planted) {
			p.Status = func(context.Context) (*runtimeapi.StatusResponse, error) { return nil, syscall.EACCES }
		}, "service", "permission denied"},
		{"runc fails", func(p *planted) { p.Runs = p.runs("", "") }, "handlers", "exit status 1"},
		{"runc says something else", func(p *planted) { p.Runs = p.runs("runc version 1.4.1\n", "usage") }, "handlers", "read the features of"},
		{"the version of the kernel", func(p *planted) { p.unreadable("/proc/sys/kernel/osrelease") }, "kernel", "read /proc/sys/kernel/osrelease"},
		{"a version without numbers", func(p *planted) { p.put("/proc/sys/kernel/osrelease", "next") }, "kernel", "has no numbers"},
		{"pidfds are forbidden", func(p *planted) { p.Pidfd = func() error { return unix.EPERM } }, "kernel", "operation not permitted"},
		{"file systems", func(p *planted) { p.unreadable("/proc/filesystems") }, "kernel", "read /proc/filesystems"},
		{"user namespaces", func(p *planted) { p.unreadable("/proc/sys/user/max_user_namespaces") }, "kernel", "max_user_namespaces"},
		{"seccomp", func(p *planted) { p.unreadable("/proc/sys/kernel/seccomp/actions_avail") }, "kernel", "actions_avail"},
		{"mounts", func(p *planted) { p.remove("/proc/self/mountinfo") }, "cgroups", "mountinfo"},
		{"controllers", func(p *planted) { p.remove("/sys/fs/cgroup/cgroup.controllers") }, "cgroups", "cgroup.controllers"},
		{"AppArmor", func(p *planted) { p.unreadable("/sys/module/apparmor/parameters/enabled") }, "security modules", "apparmor"},
		{"SELinux", func(p *planted) { p.put("/sys/fs/selinux/enforce", "1") }, "security modules", "/etc/selinux/config"},
		{"statfs", func(p *planted) { p.Statfs = func(string) (FS, error) { return FS{}, syscall.EIO } }, "disk space", "input/output"},
		{"statfs of mounts", func(p *planted) { p.Statfs = func(string) (FS, error) { return FS{}, syscall.EIO } }, "mounts", "input/output"},
		{"a directory is closed to us", func(p *planted) {
			p.Sync = func(string) (time.Duration, error) { return 0, syscall.EACCES }
		}, "disk latency", "permission denied"},
		{"the clock", func(p *planted) { p.Synchronised = func() (bool, error) { return false, syscall.EPERM } }, "clock", "not permitted"},
		{"a limit", func(p *planted) { p.remove("/proc/sys/kernel/pid_max") }, "limits", "pid_max"},
		{"a limit that is no number", func(p *planted) { p.put("/proc/sys/fs/file-max", "many") }, "limits", "is not a number"},
		{"the unit", func(p *planted) { p.unreadable("/etc/systemd/system/berth.service") }, "unit", "berth.service"},
		{"a CNI configuration", func(p *planted) { p.link("05-loop.conf", "/etc/cni/net.d/05-loop.conf") }, "network", "loop.conf"},
		{"forwarding", func(p *planted) { p.remove("/proc/sys/net/ipv4/ip_forward") }, "forwarding", "ip_forward"},
		{"who listens", func(p *planted) {
			p.put("/etc/berth/config.toml", "[metrics]\naddress = '127.0.0.1:9100'\n")
			p.remove("/proc/net/tcp")
		}, "ports", "/proc/net/tcp"},
		{"whether it is berth that listens", func(p *planted) {
			p.put("/etc/berth/config.toml", "[metrics]\naddress = '127.0.0.1:9100'\n")
			p.listens("/proc/net/tcp", "0100007F:238C", "777")
		}, "ports", "run this as root"},
		{"a certificate", func(p *planted) {
			p.put("/etc/berth/config.toml", streams)
			from, to := year()
			p.pair("/etc/berth/s.crt", "/etc/berth/s.key", from, to)
			p.unreadable("/etc/berth/s.crt")
		}, "certificates", "is a directory"},
		{"a kubelet with another file", func(p *planted) {
			p.remove("/var/lib/kubelet/config.yaml")
			p.put("/usr/bin/kubelet", "")
		}, "kubelet", "--kubelet-config"},
		{"the kubelet's file", func(p *planted) { p.unreadable("/var/lib/kubelet/config.yaml") }, "kubelet", "config.yaml"},
		{"swap", func(p *planted) { p.unreadable("/proc/swaps") }, "swap", "/proc/swaps"},
		{"another runtime", func(p *planted) {
			p.put("/run/containerd/containerd.sock", "")
			p.CRI = func(context.Context, string) (string, error) { return "", context.DeadlineExceeded }
		}, "other runtimes", "containerd.sock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := healthy(t)
			c.spoil(p)
			r := Examine(t.Context(), p.Host)
			i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.Check == c.check })
			if a := r.Answers[i]; !strings.Contains(a.NotAsked, c.why) || len(a.Findings) > 0 {
				t.Errorf("the answer is %+v", a)
			}
			if r.NotAsked() == 0 {
				t.Error("none is counted")
			}
		})
	}
}

// A berth that was given its settings on the command line, or with another file, was examined with
// settings that it does not use.
func TestTheSettingsOfARunningBerthAreExamined(t *testing.T) {
	p := healthy(t)
	cfg := config.Default()
	cfg.Network.ConfDir, cfg.Network.UseDefault = "/elsewhere", false
	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.answers(&runtimeapi.StatusResponse{Info: map[string]string{"config": string(b)}})
	r := Examine(t.Context(), p.Host)
	i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.Check == "network" })
	if a := r.Answers[i]; len(a.Findings) != 1 || !strings.Contains(a.Findings[0].What, "/elsewhere") {
		t.Errorf("the answer is %+v", a)
	}
}

// What looks like a mistake and is none.
func TestWhatIsMeantSoIsNotFound(t *testing.T) {
	for name, plant := range map[string]func(p *planted){
		"a module of overlayfs is loaded when it is needed": func(p *planted) {
			p.put("/proc/filesystems", "\text4\n")
			p.put("/lib/modules/6.18.2-cloud/modules.dep", "kernel/fs/overlayfs/overlay.ko.xz:\n")
		},
		"berth's own link to its containerd": func(p *planted) { p.link("/run/berth/cadvisor.sock", "/run/containerd/containerd.sock") },
		"a containerd that berth uses": func(p *planted) {
			p.put("/etc/berth/config.toml", "[containerd]\naddress = '/run/containerd/containerd.sock'\n")
			p.put("/run/containerd/containerd.sock", "")
			p.link("/x", "/etc/systemd/system/multi-user.target.wants/containerd.service")
		},
		"a node without a kubelet":     func(p *planted) { p.remove("/var/lib/kubelet") },
		"a node without systemd":       func(p *planted) { p.remove("/etc/systemd"); p.remove("/run/systemd") },
		"berth has its port":           func(p *planted) { berthListens(p) },
		"swap that the kubelet allows": func(p *planted) { swapAllowed(p) },
		"a kernel without AppArmor":    func(p *planted) { p.remove("/sys/module/apparmor"); p.remove("/usr/sbin/apparmor_parser") },
		"/var/run in the kubelet's file": func(p *planted) {
			p.put("/var/lib/kubelet/config.yaml", strings.Replace(goodKubelet, "///run", "///var/run", 1))
		},
		"crun, which has no known holes":  func(p *planted) { p.Runs = p.runs("crun version 1.0\n", goodRunc) },
		"a crun that is too old":          func(p *planted) { p.put("/usr/bin/crun", "") },
		"a configuration that is missing": func(p *planted) { p.remove("/etc/berth/config.toml") },
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			plant(p)
			for _, a := range Examine(t.Context(), p.Host).Answers {
				if len(a.Findings) > 0 || a.NotAsked != "" {
					t.Errorf("%s: %+v", a.Check, a)
				}
			}
		})
	}
}

func berthListens(p *planted) {
	p.put("/etc/berth/config.toml", "[metrics]\naddress = '127.0.0.1:9100'\n")
	p.listens("/proc/net/tcp", "0100007F:238C", "777")
	p.link("socket:[777]", "/proc/123/fd/5")
	p.put("/proc/123/comm", "berth\n")
}

func swapAllowed(p *planted) {
	p.put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/vdb1   partition\t1\t0\t-2\n")
	p.put("/var/lib/kubelet/config.yaml", goodKubelet+"failSwapOn: false\n")
}

// A file system that hangs kept the whole examination.
func TestACheckThatHangsCostsItsOwnAnswerAlone(t *testing.T) {
	p := healthy(t)
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		defer close(hangs)
		p.Sync = func(string) (time.Duration, error) { <-hangs; return 0, nil }
		for _, a := range Examine(t.Context(), p.Host).Answers {
			if hung := a.Check == "disk latency"; hung != strings.Contains(a.NotAsked, "no answer within 10s") || len(a.Findings) > 0 {
				t.Errorf("%+v", a)
			}
		}
	})
}

func TestADefectOfACheckIsNotTakenForAnAnswer(t *testing.T) {
	p := healthy(t)
	p.Synchronised = func() (bool, error) { panic("oops") }
	r := Examine(t.Context(), p.Host)
	i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.Check == "clock" })
	if !strings.Contains(r.Answers[i].NotAsked, "oops") || r.NotAsked() != 1 {
		t.Errorf("%+v", r.Answers[i])
	}
}

// What is measured leaves nothing behind.
func TestTheDiskIsMeasuredWithoutATrace(t *testing.T) {
	dir := t.TempDir()
	took, err := syncTime(dir)
	if err != nil || took <= 0 {
		t.Fatal(took, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestAddressesOfTheKernelAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:238C":                         "127.0.0.1:9100",
		"00000000000000000000000001000000:271A": "[::1]:10010",
		"0000000000000000FFFF00000500000A:0050": "10.0.0.5:80",
	} {
		if got, err := procAddress(text); err != nil || got.String() != want {
			t.Errorf("%s is %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0100007F", "0100:0050", "0100007F:1", "zz00007F:0050"} {
		if got, err := procAddress(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
