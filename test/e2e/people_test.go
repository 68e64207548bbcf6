// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// person sits at the controlling terminal of a command.
type person struct {
	*client.Terminal
	cmd *exec.Cmd

	mu     sync.Mutex
	screen strings.Builder
}

// atTerminal starts a command at a terminal of this size.
func atTerminal(t *testing.T, cmd *exec.Cmd, width, height uint16) *person {
	t.Helper()
	p := &person{cmd: cmd}
	p.Terminal = client.OpenTerminal(t, width, height, p)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.TTY, p.TTY, p.TTY
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// Write shows b on the screen.
func (p *person) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.Write(b)
}

func (p *person) sees(text string) func() bool {
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Contains(p.screen.String(), text)
	}
}

func (p *person) code(t *testing.T) int {
	t.Helper()
	var e *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestAPersonWorksInAContainer(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	p := atTerminal(t, n.Command("exec", "-it", id[:12], "sh"), 91, 21)
	n.Until("the terminal is in raw mode", func() bool { return !p.Echoes(t) })
	n.Until("the terminal in the container has the size", func() bool { // the shell may run before it does
		p.Type(t, "stty size\n")
		return p.sees("21 91")()
	})
	p.Resize(t, 71, 31)
	n.Until("the size follows", func() bool {
		p.Type(t, "stty size\n")
		return p.sees("31 71")()
	})
	p.Type(t, "sleep 1000\n")
	n.Until("Ctrl-C ends the command in the container", func() bool {
		p.Type(t, "\x03echo ended with $?\n")
		return p.sees("ended with 130")()
	})
	p.Type(t, "exit 42\n")
	if code := p.code(t); code != 42 {
		t.Errorf("the exit code is %d", code)
	}
	if !p.Echoes(t) {
		t.Error("the terminal stays in raw mode")
	}
	p = atTerminal(t, n.Command("exec", "-it", id, "sleep", "1000"), 80, 24)
	n.Until("the terminal is in raw mode", func() bool { return !p.Echoes(t) })
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.code(t); code != 130 || !p.Echoes(t) {
		t.Errorf("after SIGTERM: code %d", code)
	}
	nothingLeft(n)
}

func TestAScriptUsesTheCommands(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("web", "sh", "-c",
		"mkdir /tmp/w && echo -n hello >/tmp/w/f && exec httpd -f -p 127.0.0.1:8080 -h /tmp/w"))

	cmd := n.Command("exec", "-i", id, "sh", "-c", "cat; echo err >&2; exit 3")
	cmd.Stdin = strings.NewReader(strings.Repeat("0123456789abcdef", 64<<10))
	out, err := cmd.Output()
	var e *exec.ExitError
	if !errors.As(err, &e) || e.ExitCode() != 3 || string(e.Stderr) != "err\n" || len(out) != 1<<20 {
		t.Errorf("exec: %d bytes, %v", len(out), err)
	}
	if out, err := n.Command("stats", id).CombinedOutput(); err != nil || !strings.Contains(string(out), "web") {
		t.Errorf("stats: %s %v", out, err)
	}
	if out, err := n.Command("status").CombinedOutput(); err != nil {
		t.Errorf("status: %s %v", out, err)
	}
	forward := n.Command("port-forward", pod, "0:8080")
	said, err := forward.StdoutPipe()
	if err == nil {
		err = forward.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 200)
	k, _ := said.Read(b)
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(b[:k]))
	n.Until("the server in the pod answers", func() bool {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /f HTTP/1.0\r\n\r\n")
		got, _ := io.ReadAll(conn)
		return strings.HasSuffix(string(got), "hello")
	})
	_ = forward.Process.Signal(os.Interrupt)
	if err := forward.Wait(); err != nil {
		t.Errorf("port-forward: %v", err)
	}
	// A removed container is found by its name.
	if out, err := n.Command("rm", "-f", "web").CombinedOutput(); err != nil {
		t.Fatalf("rm: %s %v", out, err)
	}
	if out, err := n.Command("timeline", "web").CombinedOutput(); err != nil || !strings.Contains(string(out), "record removed") {
		t.Errorf("timeline: %s %v", out, err)
	}
}

// plugin is an NRI plug-in that notes what it is asked, and adds a variable to each container.
type plugin struct {
	stub stub.Stub

	mu    sync.Mutex
	got   []string
	evict string // the container that it evicts with its next UpdateContainers
}

// call makes a call of the plug-in, and adds the eviction, which the library for plug-ins lacks.
func (p *plugin) call(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	p.mu.Lock()
	id := p.evict
	p.mu.Unlock()
	if req.Method == "UpdateContainers" && id != "" {
		evict := &api.UpdateContainersRequest{Evict: []*api.ContainerEviction{{ContainerId: id, Reason: "a test"}}}
		b, err := proto.Marshal(evict)
		if err != nil {
			return err
		}
		req.Payload = b
	}
	return invoke(ctx, req, resp)
}

func (p *plugin) note(what, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, what+" "+name)
}

func (p *plugin) has(what ...string) func() bool {
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !slices.ContainsFunc(what, func(w string) bool { return !slices.Contains(p.got, w) })
	}
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, cts []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, x := range pods {
		p.note("sync", x.GetName())
	}
	for _, x := range cts {
		p.note("sync", x.GetName()+" "+strings.Join(x.GetArgs(), " "))
	}
	p.note("synchronized", "")
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("run", x.GetName())
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, x *api.PodSandbox, _, r *api.LinuxResources) error {
	p.note("update pod", fmt.Sprint(x.GetName(), " ", r.GetCpu().GetShares().GetValue()))
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("updated pod", fmt.Sprint(x.GetName(), " ", x.GetLinux().GetPodResources().GetCpu().GetShares().GetValue()))
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("create", c.GetName())
	a := &api.ContainerAdjustment{}
	a.AddEnv("FROM_PLUGIN", "yes")
	return a, nil, nil
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.note("update", fmt.Sprint(c.GetName(), " ", r.GetCpu().GetShares().GetValue()))
	u := &api.ContainerUpdate{}
	u.SetContainerId(c.GetId())
	u.SetLinuxCPUShares(300)
	return []*api.ContainerUpdate{u}, nil
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.note("stop", fmt.Sprint(c.GetName(), " ", c.GetExitCode()))
	return nil, nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("remove", x.GetName())
	return nil
}

// shares are the CPU shares of a container, as its status has them.
func shares(n *node.Node, id string) int64 {
	st, err := n.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return -1
	}
	return st.GetStatus().GetResources().GetLinux().GetCpuShares()
}

func connectPlugin(t *testing.T, n *node.Node) *plugin {
	t.Helper()
	p := &plugin{}
	st, err := stub.New(p, stub.WithPluginName("e2e"), stub.WithPluginIdx("10"), stub.WithSocketPath(n.Dir+"/nri/s"), stub.WithOnClose(func() {}),
		stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(p.call)}, nil))
	if err != nil {
		t.Fatal(err)
	}
	p.stub = st
	n.Until("the plug-in connects", func() bool { return st.Start(t.Context()) == nil })
	t.Cleanup(st.Stop)
	n.Until("the plug-in is synchronised", p.has("synchronized "))
	return p
}

// PROPERTIES 27: a plug-in follows and changes real containers.
func TestAnNRIPluginTakesPart(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	n := node.Start(t, node.Options{Dir: dir, Args: []string{"--set", "nri.enable=true", "--set", "nri.socket=" + dir + "/nri/s"}})
	p := connectPlugin(t, n)
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	name := cfg.GetMetadata().GetName()
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", "test $FROM_PLUGIN = yes && exit 7"))
	node.ExpectExit(t, n.Ended(id), 7, "Error")
	n.Until("the plug-in is notified of the end", p.has("run "+name, "create c", "stop c 7"))
	long := n.Run(pod, cfg, node.ContainerConfig("long", "sleep", "1000"))

	// The next berth synchronises a plug-in with what it has found.
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	p = connectPlugin(t, n)
	if !p.has("sync "+name, "sync long sleep 1000")() {
		t.Errorf("synchronised with %q", p.got)
	}
	u := &api.ContainerUpdate{}
	u.SetContainerId(long)
	u.SetLinuxCPUShares(512)
	if failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil || len(failed) > 0 || shares(n, long) != 512 {
		t.Errorf("the plug-in updates a container: %d shares, failed %v, %v", shares(n, long), failed, err)
	}
	_, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: long,
		Linux:       &runtimeapi.LinuxContainerResources{CpuShares: 200},
	})
	if err != nil || !p.has("update long 200")() || shares(n, long) != 300 {
		t.Errorf("the plug-in adjusts an update: %d shares, %v", shares(n, long), err)
	}
	_, err = n.UpdatePodSandboxResources(t.Context(), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod,
		Resources:    &runtimeapi.LinuxContainerResources{CpuShares: 400},
	})
	if err != nil || !p.has("update pod "+name+" 400")() {
		t.Errorf("the plug-in is asked about the resources of a pod: %q, %v", p.got, err)
	}
	n.Until("the plug-in is notified of the resources of the pod", p.has("updated pod "+name+" 400"))
	evicted := n.Run(pod, cfg, node.ContainerConfig("evicted", "sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done"))
	n.Until("it handles the signal", func() bool { return strings.Contains(n.Log(evicted), "ready") })
	p.mu.Lock()
	p.evict = evicted
	p.mu.Unlock()
	if failed, err := p.stub.UpdateContainers(nil); err != nil || len(failed) > 0 {
		t.Errorf("the plug-in evicts a container: failed %v, %v", failed, err)
	}
	node.ExpectExit(t, n.Ended(evicted), 3, "Error")
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: long}); err != nil {
		t.Error(err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	n.Until("the plug-in is notified of the removal", p.has("stop long 137", "remove "+name))
}
