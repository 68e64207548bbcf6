// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"

	probing "berth/internal/engine/probe"
	"berth/internal/host/pidfd"
	"berth/internal/serve/join"
	"berth/test/command"
)

// libexec is where `make tools` puts programs.
func libexec() string {
	if dir := os.Getenv("BERTH_LIBEXEC"); dir != "" {
		return dir
	}
	dir, _ := filepath.Abs("../../build/libexec")
	return dir
}

// ociRuntime is the program that makes containers: runc, or another one that BERTH_OCI_RUNTIME
// names.
func ociRuntime() string {
	return cmp.Or(os.Getenv("BERTH_OCI_RUNTIME"), filepath.Join(libexec(), "runc"))
}

// described is what that one says of itself.
var described = sync.OnceValues(func() (join.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, ociRuntime(), "features").Output()
	if err != nil {
		return join.Runtime{}, err
	}
	var has features.Features
	if err := json.Unmarshal(out, &has); err != nil {
		return join.Runtime{}, err
	}
	name, version, libseccomp := probing.Identify(ociRuntime(), has.Annotations)
	return join.Runtime{Name: name, Version: version, Libseccomp: libseccomp}, nil
})

// probe is the program that containers are made of, built once.
var probe string

func TestMain(m *testing.M) {
	if of := os.Getenv(filterVariable); of != "" {
		if err := writeFilter(of); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "berth-exec")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		probe = filepath.Join(dir, "probe")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "gcc", "-std=c11", "-static", "-O1", "-o", probe, "testdata/probe.c").CombinedOutput(); err != nil {
			panic(fmt.Sprintf("build the probe: %v: %s", err, out))
		}
		// What runc starts and leaves is reaped here, as a shim would.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			panic(err)
		}
		handleSignals()
		return m.Run()
	}())
}

// handleSignals has no signal ignored that nohup, or the & of a shell, has ignored: runc leaves
// them ignored for its program now and then, and would not say the same twice.
func handleSignals() {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// container is one that the OCI runtime has made.
type container struct {
	t      *testing.T
	by     join.Runtime
	id     string
	dir    string
	spec   *specs.Spec
	first  pidfd.Process
	ended  chan struct{}
	joiner *join.Joiner
}

func itoa(n int) string { return fmt.Sprint(n) }

func ptr[T any](v T) *T { return &v }

// some are the capabilities that containers have by default.
var some = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}

// base is a specification as berth makes them.
func base(id string) *specs.Spec {
	return &specs.Spec{
		Version: "1.2.0",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/probe", "pause"},
			Cwd:  "/",
			Env:  []string{"PATH=/usr/bin:/bin:/", "HOSTNAME=h", "HOME=/root"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: some, Effective: some, Permitted: some,
			},
			OOMScoreAdj: ptr(500),
		},
		Hostname: "h",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/berth-exec-test/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
			MaskedPaths:   []string{"/proc/kcore", "/proc/keys"},
			ReadonlyPaths: []string{"/proc/sys"},
		},
	}
}

// runtime runs the OCI runtime and returns what it prints.
func (c *container) runtime(args ...string) ([]byte, error) {
	cmd := command.New(c.t, ociRuntime(), append([]string{"--root", c.state()}, args...)...)
	cmd.Dir = c.dir
	return cmd.CombinedOutput()
}

// state is where the OCI runtime keeps its records.
func (c *container) state() string { return filepath.Join(c.dir, "state") }

var counter int

// start makes a container whose specification change has changed.
func start(t *testing.T, change func(s *specs.Spec, rootfs string)) *container {
	t.Helper()
	by, err := described()
	if err != nil {
		t.Fatal(err)
	}
	counter++
	c := &container{t: t, by: by, id: fmt.Sprintf("t%d-%d", os.Getpid(), counter), dir: t.TempDir(), ended: make(chan struct{})}
	rootfs := filepath.Join(c.dir, "rootfs")
	for _, d := range []string{"", "proc", "dev", "sys", "tmp", "etc", "usr/bin", "bin", "root", "dir", "closed"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{c.dir, filepath.Dir(c.dir)} { // for user namespaces
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(probe)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"probe", "usr/bin/found"} {
		if err := os.WriteFile(filepath.Join(rootfs, f), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.WriteFile(filepath.Join(rootfs, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\n"), 0o644)
	_ = os.WriteFile(filepath.Join(rootfs, "plain"), []byte("#!/no/such\n"), 0o644)
	_ = os.WriteFile(filepath.Join(rootfs, "script"), []byte("#!/no/such\n"), 0o755)
	_ = os.WriteFile(filepath.Join(rootfs, "odd"), []byte("neither a script nor a program"), 0o755)
	_ = os.Chmod(filepath.Join(rootfs, "closed"), 0o700)
	c.spec = base(c.id)
	change(c.spec, rootfs)
	config, err := json.Marshal(c.spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	// The output goes to a file: the container would hold a pipe open.
	said, err := os.Create(filepath.Join(c.dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := command.New(t, ociRuntime(), "--root", c.state(), "run", "-d", "--pid-file", "pid", c.id)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, said, said
	err = cmd.Run()
	t.Cleanup(func() {
		close(c.ended)
		_, _ = c.runtime("delete", "-f", c.id)
		if c.first.Pid != 0 {
			_, _ = unix.Wait4(int(c.first.Pid), nil, 0, nil)
		}
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/berth-exec-test")
		for _, d := range append(dirs, "/sys/fs/cgroup/berth-exec-test") {
			_ = unix.Rmdir(d)
		}
	})
	if err != nil {
		b, _ := os.ReadFile(said.Name())
		t.Fatalf("run: %v: %s", err, b)
	}
	pid, err := os.ReadFile(filepath.Join(c.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Sscan(string(pid), &c.first.Pid)
	for _, child := range children(t, []int{int(c.first.Pid)}) { // crun leaves one that ends at once
		if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "crun\n" {
			n, _ := strconv.Atoi(child)
			_, _ = unix.Wait4(n, nil, 0, nil)
		}
	}
	st, err := pidfd.ReadStat(c.first.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c.first.StartTicks = st.StartTicks
	if c.first.BootID, err = pidfd.BootID(); err != nil {
		t.Fatal(err)
	}
	c.joiner, err = join.New(join.Config{
		Libexec: libexec(),
		Spec:    func(context.Context, string) (*specs.Spec, error) { return c.spec, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.joiner.Close)
	return c
}

// run is a program in a container.
type run struct {
	pid    int
	out    io.ReadCloser
	err    io.ReadCloser
	code   func() int // once it has ended
	kill   func()
	failed error // it was not made
}

// pipes are a pipe that blocks at both ends, as a shim makes them.
func pipes(t *testing.T) (r, w *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe")
}

// way is one of making a program run.
type way func(c *container, args []string) run

// byOCI is what containerd's shim does: the OCI runtime makes the program's process.
func byOCI(c *container, args []string) run {
	c.t.Helper()
	p := *c.spec.Process
	p.Args = args
	b, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	file, pidFile := filepath.Join(c.dir, "process.json"), filepath.Join(c.dir, "exec.pid")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		c.t.Fatal(err)
	}
	_ = os.Remove(pidFile)
	or, ow := pipes(c.t)
	er, ew := pipes(c.t)
	cmd := command.New(c.t, ociRuntime(), "--root", c.state(), "--log", filepath.Join(c.dir, "log"),
		"exec", "--process", file, "--detach", "--pid-file", pidFile, c.id)
	cmd.Stdout, cmd.Stderr = ow, ew
	err = cmd.Run()
	_, _ = ow.Close(), ew.Close()
	r := run{out: or, err: er}
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
		r.failed = fmt.Errorf("%w: %s", err, log)
		return r
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		c.t.Fatal(err)
	}
	_, _ = fmt.Sscan(string(text), &r.pid)
	r.code = func() int {
		var ws unix.WaitStatus
		_, _ = unix.Wait4(r.pid, &ws, 0, nil)
		if ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return ws.ExitStatus()
	}
	r.kill = func() { _ = unix.Kill(r.pid, unix.SIGKILL) }
	return r
}

// byHelper is what berth does with a handler whose setting exec is helper.
func byHelper(c *container, args []string) run {
	c.t.Helper()
	or, ow := pipes(c.t)
	er, ew := pipes(c.t)
	defer ow.Close()
	defer ew.Close()
	r := run{out: or, err: er}
	plan, err := c.joiner.Prepare(c.t.Context(), c.target(), args)
	if err != nil {
		r.failed = err
		return r
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	p, err := plan.Start(ctx, ow, ew, func(p pidfd.Process) error {
		r.pid = int(p.Pid)
		return nil
	})
	if err != nil {
		r.failed = err
		return r
	}
	r.code = func() int {
		code, err := p.Wait(context.Background())
		if err != nil {
			c.t.Error(err)
		}
		return int(code)
	}
	r.kill = func() { _ = p.Kill() }
	return r
}

func (c *container) target() join.Container {
	return join.Container{
		ID: c.id, Runtime: c.by, Records: filepath.Join(c.state(), c.id),
		Process: c.first, Cgroup: c.spec.Linux.CgroupsPath, Ended: c.ended,
	}
}

// inside runs the probe to its end, and returns what it printed and its code.
func (c *container) inside(by way, args ...string) (lines []string, code int, failed error) {
	c.t.Helper()
	r := by(c, args)
	defer r.out.Close()
	defer r.err.Close()
	if r.failed != nil {
		return nil, 0, r.failed
	}
	out, err := io.ReadAll(r.out)
	if err != nil {
		c.t.Error(err)
	}
	said, _ := io.ReadAll(r.err)
	return normal(append(out, said...)), r.code(), nil
}

// numbers are what differs from process to process.
var numbers = regexp.MustCompile(`^/proc/self/status: (State|SigQ|Pid|Tgid|NSpid|NStgid|NSpgid|NSsid|Ngid|VmPeak|VmSize|VmHWM|VmRSS|RssAnon|RssFile|VmData|VmPTE|VmStk|VmLck|voluntary_ctxt_switches|nonvoluntary_ctxt_switches|Cpus_allowed_list|x86_Thread_features):`)

// parents are those of processes in the PID namespace of the host. Each run of runc has another.
var parents = regexp.MustCompile(`(PPid:|parent:)\s+\d{2,}$`)

func normal(out []byte) []string {
	out = regexp.MustCompile(`(?m)`+parents.String()).ReplaceAll(out, []byte("$1 another"))
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(string(out)), "\n"), numbers.MatchString)
}

// outside runs the probe until it has printed everything, and looks at it in the host's /proc.
func (c *container) outside(by way, args ...string) (lines []string) {
	c.t.Helper()
	r := by(c, args)
	defer r.out.Close()
	defer r.err.Close()
	if r.failed != nil {
		c.t.Error(r.failed)
		return nil
	}
	var seen bytes.Buffer
	buf := make([]byte, 4096)
	for !bytes.Contains(seen.Bytes(), []byte("\ndone\n")) {
		n, err := r.out.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			c.t.Errorf("the probe ended: %v", err)
			break
		}
	}
	dir := fmt.Sprintf("/proc/%d/", r.pid)
	for _, f := range []string{"cgroup", "limits", "oom_score_adj", "attr/current", "uid_map", "gid_map", "setgroups", "cmdline", "environ", "comm", "loginuid", "sessionid", "coredump_filter", "timerslack_ns", "mountinfo", "timens_offsets"} {
		b, err := os.ReadFile(dir + f)
		lines = append(lines, fmt.Sprintf("%s: %q %v", f, b, errOf(err)))
	}
	status, _ := os.ReadFile(dir + "status")
	for l := range strings.Lines(string(status)) {
		if l = strings.TrimSpace("/proc/self/status: " + l); !numbers.MatchString(l) && !strings.Contains(l, "PPid") {
			lines = append(lines, l)
		}
	}
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		to, _ := os.Readlink(dir + "ns/" + ns)
		lines = append(lines, "ns "+to)
	}
	for _, l := range []string{"root", "cwd", "exe"} {
		to, err := os.Readlink(dir + l)
		lines = append(lines, l+" "+to, fmt.Sprint(errOf(err)))
	}
	fds, _ := os.ReadDir(dir + "fd")
	for _, fd := range fds {
		to, _ := os.Readlink(dir + "fd/" + fd.Name())
		lines = append(lines, "fd "+fd.Name()+" "+regexp.MustCompile(`\d+`).ReplaceAllString(to, "N"))
	}
	var st unix.Stat_t
	_ = unix.Stat(dir, &st)
	lines = append(lines, fmt.Sprintf("owner %d:%d", st.Uid, st.Gid))
	r.kill()
	if code := r.code(); code != 137 {
		c.t.Errorf("killed, it ended with %d", code)
	}
	return lines
}

func errOf(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// ofCaller is what a process that crun makes has from whoever calls crun. One that berth-exec makes
// has a session keyring of its own and the OOM score of its container instead. FDSize is how many
// descriptors a process has room for, which grows with those that it ever had.
var ofCaller = regexp.MustCompile(`^(keyring|oom_score_adj|/proc/self/oom_score_adj|/proc/self/status: FDSize):`)

// givenNull is the line of a null device as standard input. crun gives the one that it gets, which
// is the host's here, to the user of the program. That of berth-exec is root's, and no file of the
// host's.
var givenNull = regexp.MustCompile(`^(fd 0: mode 20666 owner )\d+:\d+( rdev 103 )`)

// asByCrun leaves out of a list of lines what crun does otherwise than berth-exec, and than runc.
func asByCrun(lines []string) (out []string) {
	for _, l := range slices.DeleteFunc(slices.Clone(lines), ofCaller.MatchString) {
		out = append(out, givenNull.ReplaceAllString(l, "${1}somebody${2}"))
	}
	return out
}

// differences says what two lists of lines do not have in common that a program has to find the
// same.
func (c *container) differences(a, b []string) string {
	if c.by.Name == "crun" {
		a, b = asByCrun(a), asByCrun(b)
	}
	var out strings.Builder
	for i := range max(len(a), len(b)) {
		x, y := "(nothing)", "(nothing)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			fmt.Fprintf(&out, "\n  by %s: %s\n  other:   %s", c.by.Name, x, y)
		}
	}
	return out.String()
}
