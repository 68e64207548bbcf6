// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/testimage"
)

const busybox = "localhost/berth-test:latest"

// root is the module's.
func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"build/bin/berth", "build/libexec/containerd", "build/libexec/runc", "build/libexec/pause", "build/cni/bridge"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Fatalf("%v: run `make tools build`", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Fatal("real containers need root")
	}
	return dir
}

var instances atomic.Int32

// node is one berth with its directories, and the containerd it uses if that is external.
type node struct {
	t        testing.TB
	root     string
	dir      string
	bridge   string
	args     []string
	external string // containerd's socket, "" for embedded
	ctrd     *process
	berth    *process
	*cri.Client
}

type options struct {
	external bool
	runc     string // path of the OCI runtime; "" for the built one
	args     []string
}

// start brings up a node; the test's end removes all pods, stops it and looks for leaks.
func start(t testing.TB, o options) *node {
	t.Helper()
	n := &node{t: t, root: root(t)}
	dir, err := os.MkdirTemp("", "be") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	n.dir = dir
	k := int(instances.Add(1))
	n.bridge = fmt.Sprintf("be%d-%d", os.Getpid()%100000, k)
	n.args = []string{
		"serve", "--config", filepath.Join(dir, "config.toml"), "--root", dir + "/lib", "--state", dir + "/run", "--address", dir + "/berth.sock", "--libexec", n.root + "/build/libexec",
		"--cni-conf-dir", dir + "/net.d", "--set", "network.netns_dir=" + dir + "/netns", "--set", "network.default_bridge=" + n.bridge,
		"--set", fmt.Sprintf("network.default_subnet=10.%d.%d.0/24", 90+os.Getpid()%100, k), "--set", "network.bin_dirs=[\"" + n.root + "/build/cni\"]",
	}
	if err := os.WriteFile(dir+"/config.toml", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runc := o.runc
	if runc == "" {
		runc = n.root + "/build/libexec/runc"
	}
	n.args = append(append(n.args, "--set", "runtimes.runc.binary="+runc), o.args...)
	if o.external {
		n.external = dir + "/c/containerd.sock"
		n.args = append(n.args, "--containerd", n.external, "--set", "runtimes.runc.root="+dir+"/runc")
		n.startContainerd()
	}
	t.Cleanup(n.stop)
	n.startBerth()
	n.importImage()
	return n
}

// process is a child with its output.
type process struct {
	cmd  *exec.Cmd
	out  *lines
	done chan struct{}
}

// lines collects output and tells when a line comes.
type lines struct {
	mu   sync.Mutex
	all  bytes.Buffer
	seen chan string
}

func (l *lines) follow(r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		l.mu.Lock()
		l.all.WriteString(sc.Text() + "\n")
		l.mu.Unlock()
		select {
		case l.seen <- sc.Text():
		default:
		}
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func (n *node) spawn(name string, args ...string) *process {
	n.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PATH="+n.root+"/build/libexec:"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what a terminal sends to the test is not for it
	r, w, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	_ = w.Close()
	p := &process{cmd: cmd, out: &lines{seen: make(chan string, 10000)}, done: make(chan struct{})}
	go p.out.follow(r) // ends with the last holder of the pipe
	go func() { _ = cmd.Wait(); close(p.done) }()
	return p
}

func (p *process) kill(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	<-p.done
}

func (n *node) startContainerd() {
	n.t.Helper()
	cfg := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\ndisabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n"+
		"[plugins.'io.containerd.server.v1.grpc']\naddress = %q\n[plugins.'io.containerd.server.v1.ttrpc']\naddress = %q\n[plugins.'io.containerd.shim.v1.manager']\nsocket_dir = %q\n",
		n.dir+"/cl", n.dir+"/c", n.external, n.external+".ttrpc", n.dir+"/s")
	if err := os.WriteFile(n.dir+"/containerd.toml", []byte(cfg), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.ctrd = n.spawn(n.root+"/build/libexec/containerd", "--config", n.dir+"/containerd.toml")
}

// startBerth starts berth and waits for its ready line.
func (n *node) startBerth() {
	n.t.Helper()
	n.berth = n.spawn(n.root+"/build/bin/berth", n.args...)
	for {
		select {
		case line := <-n.berth.out.seen:
			if strings.HasPrefix(line, "berth is ready on ") {
				c, err := cri.Dial(n.dir + "/berth.sock")
				if err != nil {
					n.t.Fatal(err)
				}
				if n.Client != nil {
					_ = n.Client.Close()
				}
				n.Client = c
				return
			}
		case <-n.berth.done:
			n.t.Fatalf("berth ended before it was ready:\n%s", n.berth.out)
		case <-time.After(time.Minute):
			n.t.Fatalf("berth is not ready after a minute:\n%s", n.berth.out)
		}
	}
}

func (n *node) importImage() {
	n.t.Helper()
	img, err := testimage.Busybox()
	if err != nil {
		n.t.Fatal(err)
	}
	path := n.dir + "/image.tar"
	if err := testimage.WriteOCIArchive(path, busybox, img); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.Import(n.t.Context(), path, ""); err != nil {
		n.t.Fatal(err)
	}
}

// stop removes everything and looks for what was left.
func (n *node) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if n.t.Failed() && n.berth != nil {
		n.t.Logf("berth's log:\n%s", n.berth.out)
	}
	if n.Client != nil {
		select {
		case <-n.berth.done:
		default:
			n.removeAll(ctx)
			n.berth.kill(syscall.SIGTERM)
			if code := n.berth.cmd.ProcessState.ExitCode(); code != 0 {
				n.t.Errorf("berth ended with %d:\n%s", code, n.berth.out)
			}
		}
		_ = n.Client.Close()
	}
	if n.ctrd != nil {
		n.ctrd.kill(syscall.SIGTERM)
	}
	n.leaks()
	if l, err := netlink.LinkByName(n.bridge); err == nil {
		_ = netlink.LinkDel(l)
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

func (n *node) removeAll(ctx context.Context) {
	pods, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Error(err)
		return
	}
	var wg sync.WaitGroup
	for _, p := range pods.GetItems() {
		wg.Go(func() {
			if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				n.t.Error(err)
			}
		})
	}
	wg.Wait()
}

// leaks fails the test for each process, mount, pin and record that is left of the node.
func (n *node) leaks() {
	n.t.Helper()
	deadline := time.Now().Add(10 * time.Second) // shims end by themselves, a moment after
	var left []string
	for {
		left = left[:0]
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			b, _ := os.ReadFile(p)
			if bytes.Contains(b, []byte(n.dir+"/")) {
				left = append(left, "process "+strings.ReplaceAll(string(b), "\x00", " "))
				if time.Now().After(deadline) { // do not leave it to others
					var pid int
					_, _ = fmt.Sscanf(p, "/proc/%d/", &pid)
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		b, _ := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, n.dir+"/") {
				left = append(left, "mount "+line)
			}
		}
		for _, pattern := range []string{"/netns/*", "/run/io/*", "/run/sandboxes/*", "/lib/volumes/*", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/*", "/c/io.containerd.runtime.v2.task/k8s.io/*", "/lib/ipam/*/10.*"} {
			found, _ := filepath.Glob(n.dir + pattern)
			for _, f := range found {
				// A bundle that containerd was killed while deleting stays as .ID, empty of everything that runs.
				if !strings.HasPrefix(filepath.Base(f), ".") {
					left = append(left, f)
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	for _, l := range left {
		if f := strings.Fields(l); len(f) > 5 && f[0] == "mount" {
			_ = syscall.Unmount(f[5], syscall.MNT_DETACH)
		}
	}
}

var names atomic.Int32

func podConfig(n *node) *runtimeapi.PodSandboxConfig {
	name := fmt.Sprintf("pod%d", names.Add(1))
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: filepath.Join(n.dir, "logs", name), Labels: map[string]string{"app": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func containerConfig(name string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: busybox}, Command: command, LogPath: name + ".log",
		Labels: map[string]string{"container": name},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		}},
	}
}

func (n *node) pod(cfg *runtimeapi.PodSandboxConfig) string {
	n.t.Helper()
	resp, err := n.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetPodSandboxId()
}

func (n *node) create(pod string, sandbox *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	resp, err := n.CreateContainer(n.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg, SandboxConfig: sandbox})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetContainerId()
}

func (n *node) run(pod string, sandbox *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	id := n.create(pod, sandbox, cfg)
	if _, err := n.StartContainer(n.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		n.t.Fatal(err)
	}
	return id
}

// sh is a container in a pod of its own.
func (n *node) sh(script string) (pod, id string) {
	n.t.Helper()
	cfg := podConfig(n)
	pod = n.pod(cfg)
	return pod, n.run(pod, cfg, containerConfig("c", "sh", "-c", script))
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	st, err := n.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return st.GetStatus()
}

// ended waits until a container is EXITED.
func (n *node) ended(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	var st *runtimeapi.ContainerStatus
	n.until("container "+id+" EXITED", func() bool {
		st = n.status(id)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

// until waits for a condition, and fails the test when it does not come true in half a minute.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.t.Fatalf("still not: %s", what)
}

// log is what a container wrote, without stamps.
func (n *node) log(id string) string {
	n.t.Helper()
	b, err := os.ReadFile(n.status(id).GetLogPath())
	if err != nil {
		n.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 {
			n.t.Fatalf("no log line: %q", line)
		}
		text := f[3]
		if f[2] == "P" {
			text = strings.TrimSuffix(text, "\n")
		}
		out.WriteString(text)
	}
	return out.String()
}

func expectExit(t testing.TB, st *runtimeapi.ContainerStatus, code int32, reason string) {
	t.Helper()
	if st.GetExitCode() != code || st.GetReason() != reason {
		t.Errorf("%s ended with %d %s (%s), want %d %s", st.GetMetadata().GetName(), st.GetExitCode(), st.GetReason(), st.GetMessage(), code, reason)
	}
	if st.GetFinishedAt() < st.GetStartedAt() || st.GetStartedAt() < st.GetCreatedAt() {
		t.Errorf("%s: created %d, started %d, finished %d", st.GetMetadata().GetName(), st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt())
	}
}
