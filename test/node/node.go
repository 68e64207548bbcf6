// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	bridges "berth/internal/host/network"
	"berth/test/testimage"
)

// Busybox is the image that each node has from its start.
const Busybox = "localhost/berth-test:latest"

// Module is the root directory of berth's source, with the built files for real containers.
func Module(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == "/" {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
	for _, f := range []string{"build/bin/berth", "build/libexec/containerd", "build/libexec/runc", "build/libexec/pause", "build/libexec/berth-logger", "build/cni/bridge"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Fatalf("%v: run `make tools build`", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Fatal("real containers need root")
	}
	return dir
}

// TempDir makes a directory with a short path, for [Options] or beside a node. It is removed at the
// test's end, unless something is mounted below it by then.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "be")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s is left, since %s is mounted", dir, left[0].Mountpoint)
		}
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

var instances atomic.Int32

// network is the second byte of the addresses of this process's nodes. No other process has the
// same: it is claimed with a lock on a file, which ends with the process.
var network = sync.OnceValue(func() int {
	const first, count = 90, 100
	for i := range count {
		n := first + (os.Getpid()+i)%count
		path := filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-10.%d.lock", n))
		fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			panic(err)
		}
		if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return n // the lock is kept until the process ends
		}
		_ = syscall.Close(fd)
	}
	panic("all networks for tests are in use")
})

// Node is one berth with its directories, and the containerd it uses if that is external. Calls are
// made through the embedded client, which StartBerth replaces.
type Node struct {
	*client.Client
	Dir        string // everything of the node's is below it
	Module     string // root of the source
	Bridge     string // of its pods
	Subnet     string // of its pods, CIDR
	Cgroup     string // parent of its pods' groups
	Containerd *Process
	Berth      *Process
	Program    string // of the next berth; "" for the built one

	t        testing.TB
	args     []string
	berths   []*Process // one after the other
	libexec  string
	netns    string // of berth, and of an external containerd; "": the test's own
	mountNS  string // so do they
	external string // containerd's socket, "" for embedded
	seen     *seen
	manager  *serviceManager         // nil: there is none
	stderr   *os.File                // berth's; nil: as its standard output
	serving  atomic.Pointer[Process] // Berth, for other goroutines
	hung     atomic.Bool             // something did not end, and berth was ended for that
	unbound  func()                  // ends the limit of the whole test

	containerdRoot string // of an external containerd; "" for the usual one
}

// Options are the differences of a node from the usual one.
type Options struct {
	// of everything, removed with the node; "" for a new one. A short path: sockets live below it
	Dir      string
	External bool
	Runc     string   // path of the OCI runtime; "" for BERTH_OCI_RUNTIME, or the built one
	Libexec  string   // directory of shim and pause program; "" for the built one
	CNI      string   // directory of CNI plug-ins; "" for the built one
	Args     []string // more arguments of berth's
	// ServiceManager keeps berth's descriptors beyond its death, as systemd does.
	ServiceManager bool
	// NetNS is the path of the network namespace that berth runs in, and an external containerd: see
	// [NewLAN]. "": the test's own.
	NetNS string
	// MountNS is the path of the mount namespace that they run in: see [NewMounts]. "": the test's
	// own.
	MountNS string
	// Program is berth; "" for the built one.
	Program string
	// Stderr is the standard error of berth and of an external containerd, instead of a pipe that the
	// node reads.
	Stderr *os.File
}

// Start starts a node. At the test's end all pods are removed, the node is stopped, and leaks are
// looked for.
func Start(t testing.TB, o Options) *Node {
	t.Helper()
	n := &Node{t: t, Module: Module(t), libexec: o.Libexec, netns: o.NetNS, mountNS: o.MountNS, stderr: o.Stderr, Program: o.Program}
	var err error
	dir := o.Dir
	if dir == "" {
		dir = TempDir(t)
	}
	n.Dir = dir
	k := int(instances.Add(1))
	n.Bridge = fmt.Sprintf("be%d-%d", os.Getpid()%100000, k)
	n.Subnet = fmt.Sprintf("10.%d.%d.0/24", network(), k%250+1)
	n.Cgroup = fmt.Sprintf("/be%d-%d", os.Getpid(), k)
	runc, cni := o.Runc, o.CNI
	if n.libexec == "" {
		n.libexec = n.Module + "/build/libexec"
	}
	if runc == "" {
		runc = cmp.Or(os.Getenv("BERTH_OCI_RUNTIME"), n.Module+"/build/libexec/runc")
	}
	if cni == "" {
		cni = n.Module + "/build/cni"
	}
	n.args = []string{
		"serve", "--config", dir + "/config.toml", "--root", dir + "/lib", "--state", dir + "/run", "--address", dir + "/berth.sock", "--libexec", n.libexec,
		"--cni-conf-dir", dir + "/net.d", "--set", "containerd.link=", "--set", "network.netns_dir=" + dir + "/netns", "--set", "network.default_bridge=" + n.Bridge,
		"--set", "network.default_subnet=" + n.Subnet, "--set", "network.bin_dirs=[\"" + cni + "\"]", "--set", "runtimes.runc.binary=" + runc,
	}
	n.args = append(append(n.args, usual()...), o.Args...)
	if err := os.WriteFile(dir+"/config.toml", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n.seen, err = watchPins(dir + "/netns"); err != nil {
		t.Fatal(err)
	}
	n.unbound = n.bound()
	t.Cleanup(n.stop)
	if o.ServiceManager {
		n.manager = startServiceManager(t, dir+"/notify")
	}
	if o.External {
		n.external = dir + "/c/containerd.sock"
		n.args = append(n.args, "--containerd", n.external, "--set", "runtimes.runc.root="+dir+"/runc")
		n.StartContainerd()
	}
	n.StartBerth()
	n.ImportImage()
	return n
}

// Modes runs a test with containerd inside and outside of berth, or with one of them: see [Pick].
func Modes(t *testing.T, f func(t *testing.T, external bool)) {
	for _, mode := range Pick(t, "place of containerd", "embedded", "external") {
		t.Run(mode, func(t *testing.T) { f(t, mode == "external") })
	}
}

// Both runs a test with containerd inside and outside of berth, or with one of them: see [Pick].
func Both(t *testing.T, f func(t *testing.T, n *Node)) {
	Modes(t, func(t *testing.T, external bool) { f(t, Start(t, Options{External: external})) })
}

// StartContainerd starts the external containerd.
func (n *Node) StartContainerd() {
	n.t.Helper()
	cfg := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\ndisabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n"+
		"[plugins.'io.containerd.server.v1.grpc']\naddress = %q\n[plugins.'io.containerd.server.v1.ttrpc']\naddress = %q\n[plugins.'io.containerd.shim.v1.manager']\nsocket_dir = %q\n",
		cmp.Or(n.containerdRoot, n.Dir+"/cl"), filepath.Dir(n.external), n.external, n.external+".ttrpc", n.Dir+"/s")
	if n.OldContainerd() {
		cfg = n.oldConfig(false)
	}
	if err := os.WriteFile(n.Dir+"/containerd.toml", []byte(cfg), 0o600); err != nil {
		n.t.Fatal(err)
	}
	var args []string
	if n.stderr != nil {
		args = append(args, "--log-level", "debug")
	}
	n.Containerd = n.beside(n.stderr, args...)
}

// StartBerth starts berth, and waits until it serves and has a containerd.
func (n *Node) StartBerth() {
	n.t.Helper()
	n.ServeBerth()
	n.Until("berth is connected to containerd", n.Connected)
}

// Connected reports whether berth can make pods.
func (n *Node) Connected() bool {
	n.t.Helper()
	st, err := n.RuntimeServiceClient.Status(n.t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return st.GetStatus().GetConditions()[0].GetStatus()
}

// ImageCall calls a method of CRI's image service that the client has not: one of Kubernetes 1.38.
func (n *Node) ImageCall(method string, req, resp proto.Message) error {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Dir+"/berth.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	return conn.Invoke(n.t.Context(), "/runtime.v1.ImageService/"+method, req, resp)
}

// ServeBerth starts berth and waits for its ready line.
func (n *Node) ServeBerth() {
	n.t.Helper()
	n.Berth = n.SpawnBerth()
	n.serving.Store(n.Berth)
	n.berths = append(n.berths, n.Berth)
	for {
		select {
		case line := <-n.Berth.out.seen:
			if strings.HasPrefix(line, "berth is ready on ") {
				c, err := n.connect()
				if err != nil {
					n.t.Fatal(err)
				}
				if n.Client != nil {
					_ = n.Client.Close()
				}
				n.Client = c
				return
			}
		case <-n.Berth.done:
			n.t.Fatalf("berth ended before it was ready:\n%s", n.Berth.out)
		case <-time.After(time.Minute):
			n.Berth.quit()
			n.t.Fatalf("berth is not ready after a minute:\n%s", n.Berth.out)
		}
	}
}

// SpawnBerth starts one more berth on the node's data, and waits for nothing.
func (n *Node) SpawnBerth() *Process {
	n.t.Helper()
	name, args := cmp.Or(n.Program, n.Module+"/build/bin/berth"), n.args
	name, args = n.inside(name, args...)
	if n.manager == nil {
		return n.spawn(n.stderr, nil, nil, name, args...)
	}
	env, files := n.manager.heritage()
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	// LISTEN_PID is the pid of the process that may use them: the shell, which becomes berth.
	return n.spawn(n.stderr, env, files, "/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, name}, args...)...)
}

// inside is the command that runs a program in the namespaces of the node.
func (n *Node) inside(name string, args ...string) (string, []string) {
	var where []string
	if n.netns != "" {
		where = append(where, "--net="+n.netns)
	}
	if n.mountNS != "" {
		where = append(where, "--mount="+n.mountNS)
	}
	if where == nil {
		return name, args
	}
	return "nsenter", append(append(where, name), args...)
}

// SpawnInside is [Node.Spawn] in the namespaces of the node.
func (n *Node) SpawnInside(name string, args ...string) *Process {
	n.t.Helper()
	name, args = n.inside(name, args...)
	return n.Spawn(name, args...)
}

// ImportImage gives the node the image that its pods are made of.
func (n *Node) ImportImage() {
	n.t.Helper()
	img, err := testimage.Busybox()
	if err != nil {
		n.t.Fatal(err)
	}
	path := n.Dir + "/image.tar"
	if err := testimage.WriteOCIArchive(path, Busybox, img); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.Import(n.t.Context(), path, ""); err != nil {
		n.t.Fatal(err)
	}
}

// stop removes everything and looks for leaks.
func (n *Node) stop() {
	n.unbound()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	defer func() {
		if n.t.Failed() && n.Berth != nil {
			n.t.Logf("berth's log:\n%s", n.Berth.out)
			if n.Containerd != nil {
				n.t.Logf("containerd's log:\n%s", n.Containerd.out)
			}
		}
	}()
	if n.Client != nil {
		select {
		case <-n.Berth.done:
		default:
			n.RemoveAll(ctx)
			if ctx.Err() != nil {
				n.hangs("the pods could not be removed in time")
				break
			}
			n.leaksInContainerd(ctx)
			n.Berth.Kill(syscall.SIGTERM)
			if code := n.Berth.cmd.ProcessState.ExitCode(); code != 0 {
				n.t.Errorf("berth ended with %d:\n%s", code, n.Berth.out)
			}
		}
		_ = n.Client.Close()
	}
	if n.Containerd != nil {
		n.Containerd.Kill(syscall.SIGTERM)
	}
	if n.manager != nil {
		if left := n.manager.stop(); left > 0 {
			n.t.Errorf("%d descriptors were left with the service manager", left)
		}
	}
	n.leaks()
	n.contradictions()
	if l, err := netlink.LinkByName(n.Bridge); err == nil {
		_ = netlink.LinkDel(l)
	}
	bridge := bridges.Bridge{Name: n.Bridge, Subnet: n.Subnet}
	if err := bridge.RemoveRules(context.Background()); err != nil {
		n.t.Error(err)
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		n.t.Error(err)
	}
}

// RemoveAll removes every pod but those. A removal that takes more than two minutes fails the test.
func (n *Node) RemoveAll(ctx context.Context, but ...string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	pods, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Error(err)
		return
	}
	var wg sync.WaitGroup
	for _, p := range pods.GetItems() {
		if slices.Contains(but, p.GetId()) {
			continue
		}
		wg.Go(func() {
			if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				n.t.Errorf("remove pod %s: %v\n%s", p.GetId(), err, n.waits())
			}
		})
	}
	wg.Wait()
}
