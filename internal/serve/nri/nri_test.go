// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/heart/pod"
)

// pods is a controller in memory.
type pods struct {
	mu      sync.Mutex
	targets map[string]pod.Target
	calls   []string
	hangs   func(id string) bool // whether what a plug-in asks for about a container hangs
}

// hang waits until ctx ends, if what is about a container hangs.
func (p *pods) hang(ctx context.Context, id string) error {
	if p.hangs == nil || !p.hangs(id) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (p *pods) ListPodSandbox(*runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for id, t := range p.targets {
		if id == t.PodID {
			out = append(out, &runtimeapi.PodSandbox{Id: id})
		}
	}
	return out
}

func (p *pods) ListContainers(*runtimeapi.ContainerFilter) []*runtimeapi.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*runtimeapi.Container
	for id, t := range p.targets {
		if id != t.PodID {
			out = append(out, &runtimeapi.Container{Id: id, State: runtimeapi.ContainerState_CONTAINER_RUNNING})
		}
	}
	return out
}

func (p *pods) Target(id string) (pod.Target, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.targets[id]; ok {
		return t, nil
	}
	return pod.Target{}, errdefs.ErrNotFound
}

func (p *pods) StopContainer(ctx context.Context, id string, _ time.Duration) error {
	p.note("stop " + id)
	return p.hang(ctx, id)
}

func (p *pods) UpdatePodSandboxResources(context.Context, string, *runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources) error {
	return nil
}

func (p *pods) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	p.note(fmt.Sprintf("update %s %d", id, r.GetCpuShares()))
	return p.hang(ctx, id)
}

func (p *pods) set(t pod.Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets[t.ID] = t
}

func (p *pods) note(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

func (p *pods) called(call string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.calls, call)
}

// sandbox and container are targets as the controller describes them.
func sandbox(id string) pod.Target {
	return pod.Target{
		ID:        id,
		PodID:     id,
		Running:   true,
		PodConfig: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "name-" + id, Namespace: "ns", Uid: "uid"}},
		IPs:       []string{"10.0.0.1"},
	}
}

func container(id, podID string) pod.Target {
	t := sandbox(podID)
	t.ID = id
	t.Config = &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "name-" + id}}
	return t
}

func ociSpec() *specs.Spec {
	return &specs.Spec{
		Process:     &specs.Process{Args: []string{"sh"}, Env: []string{"A=1"}},
		Mounts:      []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux:       &specs.Linux{CgroupsPath: "/c", Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}},
		Annotations: map[string]string{"io.kubernetes.cri.sandbox-id": "p"},
	}
}

// start serves plug-ins until the test ends.
func start(t *testing.T, timeout time.Duration) (*Service, *pods) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // a path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{targets: map[string]pod.Target{}}
	s, err := New(Config{
		Socket:              filepath.Join(dir, "d", "nri.sock"),
		RequestTimeout:      timeout,
		RegistrationTimeout: 10 * time.Second,
		Pods:                func() Pods { return p },
		Spec:                func(context.Context, string) (*specs.Spec, error) { return ociSpec(), nil },
		Logger:              slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	runToTheEnd(t, s, dir)
	until(t, "the socket is there", func() bool {
		st, err := os.Stat(s.cfg.Socket)
		return err == nil && st.Mode().Perm() == 0o600
	})
	return s, p
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 20_000 {
		if f() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("it never is true that %s", what)
}

// plugin is a plug-in that notes what it is asked.
type plugin struct {
	stub stub.Stub

	mu     sync.Mutex
	got    []string
	hang   map[string]chan struct{} // by what it is asked; it waits until that is closed
	fail   map[string]error
	adjust *api.ContainerAdjustment
	shares uint64 // what UpdateContainer makes of the CPU shares
	update []*api.ContainerUpdate
	evict  map[string]*api.ContainerEviction // what it asks for, by method
	policy *api.FailurePolicy
}

func (p *plugin) note(ctx context.Context, what string) error {
	p.mu.Lock()
	p.got = append(p.got, what)
	verb, _, _ := strings.Cut(what, " ")
	hang, err := p.hang[verb], p.fail[verb]
	p.mu.Unlock()
	if hang != nil {
		<-hang // it does not look at its context either
	}
	return err
}

func (p *plugin) has(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.got, what)
}

func (p *plugin) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func (p *plugin) Configure(context.Context, string, string, string) (stub.EventMask, error) {
	return 0, nil
}

func (p *plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, cts []*api.Container) ([]*api.ContainerUpdate, error) {
	var ids []string
	for _, x := range pods {
		ids = append(ids, x.GetId())
	}
	for _, x := range cts {
		ids = append(ids, x.GetId())
	}
	slices.Sort(ids)
	return nil, p.note(ctx, "synchronize "+strings.Join(ids, ","))
}

func (p *plugin) RunPodSandbox(ctx context.Context, x *api.PodSandbox) error {
	return p.note(ctx, "run "+x.GetId()+" "+x.GetName()+" "+strings.Join(x.GetIps(), ","))
}

func (p *plugin) StopPodSandbox(ctx context.Context, x *api.PodSandbox) error {
	return p.note(ctx, "stop-pod "+x.GetId())
}

func (p *plugin) RemovePodSandbox(ctx context.Context, x *api.PodSandbox) error {
	return p.note(ctx, "remove-pod "+x.GetId()+" "+x.GetName())
}

func (p *plugin) UpdatePodSandbox(ctx context.Context, x *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	return p.note(ctx, fmt.Sprintf("update-pod %s %s %s", x.GetId(), memory(overhead), memory(resources)))
}

func (p *plugin) PostUpdatePodSandbox(ctx context.Context, x *api.PodSandbox) error {
	return p.note(ctx, fmt.Sprintf("updated-pod %s %s %s", x.GetId(), memory(x.GetLinux().GetPodOverhead()), memory(x.GetLinux().GetPodResources())))
}

// memory is the memory limit of the resources of a pod; "-" if there are no resources.
func memory(r *api.LinuxResources) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprint(r.GetMemory().GetLimit().GetValue())
}

func (p *plugin) CreateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjust, p.update, p.note(ctx, "create "+c.GetId()+" "+c.GetName())
}

func (p *plugin) StartContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note(ctx, "start "+c.GetId())
}

func (p *plugin) UpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	if p.shares == 0 {
		return nil, p.note(ctx, "update "+c.GetId())
	}
	own, other := &api.ContainerUpdate{}, &api.ContainerUpdate{}
	own.SetContainerId(c.GetId())
	own.SetLinuxCPUShares(p.shares)
	other.SetContainerId("other")
	other.SetLinuxCPUShares(1)
	return []*api.ContainerUpdate{own, other}, p.note(ctx, fmt.Sprint("update ", c.GetId(), " ", r.GetCpu().GetShares().GetValue()))
}

func (p *plugin) PostUpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note(ctx, "updated "+c.GetId())
}

func (p *plugin) StopContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note(ctx, fmt.Sprintf("stop %s %d", c.GetId(), c.GetExitCode()))
}

func (p *plugin) RemoveContainer(ctx context.Context, x *api.PodSandbox, c *api.Container) error {
	return p.note(ctx, "remove "+c.GetId()+" of "+x.GetId())
}

// evictions has the plug-in ask for evictions, which the protocol has and the library for plug-ins
// lacks: they are added to its messages.
func (p *plugin) evictions() stub.Option {
	return stub.WithTTRPCOptions(
		[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
			if e := p.evict[req.Method]; e != nil {
				more, err := proto.Marshal(&api.UpdateContainersRequest{Evict: []*api.ContainerEviction{e}})
				if err != nil {
					return err
				}
				req.Payload = append(req.Payload, more...) // messages in wire format are merged like this
			}
			return invoke(ctx, req, resp)
		})},
		[]ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
			answer, err := method(ctx, unmarshal)
			e := p.evict[path.Base(info.FullMethod)]
			switch a := answer.(type) {
			case *api.CreateContainerResponse:
				if e != nil && a != nil {
					a.Evict = append(a.Evict, e)
				}
			case *api.UpdateContainerResponse:
				if e != nil && a != nil {
					a.Evict = append(a.Evict, e)
				}
			}
			return answer, err
		})},
	)
}

// connect registers a plug-in, and does not wait until it is synchronised.
func connect(t *testing.T, s *Service, p *plugin) {
	t.Helper()
	var err error
	p.stub, err = stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx("10"), stub.WithSocketPath(s.cfg.Socket), stub.WithOnClose(func() {}), p.policies(), p.evictions())
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.stub.Run(t.Context()) }()
	t.Cleanup(p.stub.Stop)
}

// policies are what the plug-in asks for when it does not answer, if it asks for anything.
func (p *plugin) policies() stub.Option {
	if p.policy == nil {
		return stub.WithOnClose(func() {})
	}
	return stub.WithFailurePolicy(p.policy)
}

// join registers a plug-in and waits until it takes part.
func join(t *testing.T, s *Service, p *plugin) *plugin {
	t.Helper()
	connect(t, s, p)
	until(t, "the plug-in is synchronised", func() bool {
		return len(p.all()) > 0
	})
	b := s.plugins.BlockPluginSync() // it takes part once the synchronisation is over
	b.Unblock()
	return p
}

// live takes a container through its life.
func live(t *testing.T, s *Service, pod, ct string) {
	t.Helper()
	ctx := t.Context()
	if err := s.SandboxRun(ctx, sandbox(pod)); err != nil {
		t.Error(err)
	}
	c := container(ct, pod)
	if err := s.AdjustSpec(ctx, c, c.Config, ociSpec()); err != nil {
		t.Error(err)
	}
	s.Created(ctx, c)
	if err := s.Starting(ctx, c); err != nil {
		t.Error(err)
	}
	s.Started(ctx, c)
	for range 2 { // a hook may be called again
		if err := s.Ended(ctx, c, exit.Fact{ID: ct, Code: 7, Measured: true}); err != nil {
			t.Error(err)
		}
	}
	if err := s.Ended(ctx, sandbox(pod), exit.Fact{ID: pod}); err != nil {
		t.Error(err)
	}
	s.Removed(ct)
	s.Removed(pod)
	s.Removed("never made")
}

func TestAPluginFollowsTheLifeOfAPodInOrder(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	live(t, s, "p", "c")
	until(t, "the pod is removed", func() bool { return p.has("remove-pod p name-p") })
	want := []string{
		"synchronize ", "run p name-p 10.0.0.1", "create c name-c", "start c",
		"stop c 7", "stop-pod p", "remove c of p", "remove-pod p name-p",
	}
	if got := p.all(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if pods, cts := s.known.all(); len(pods)+len(cts) > 0 {
		t.Errorf("remembered: %v %v", pods, cts)
	}
}

// PROPERTIES 53: the socket was removed while berth was there, and nothing said why no plug-in
// could connect.
func TestASocketThatOthersHaveTakenAwayIsNamed(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	if text := s.Problem(); text != "" {
		t.Errorf("nothing is wrong: %s", text)
	}
	if err := os.Remove(s.cfg.Socket); err != nil {
		t.Fatal(err)
	}
	if text := s.Problem(); !strings.Contains(text, s.cfg.Socket) {
		t.Errorf("without its socket: %q", text)
	}
	if err := os.WriteFile(s.cfg.Socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if text := s.Problem(); !strings.Contains(text, s.cfg.Socket) {
		t.Errorf("with another file in its place: %q", text)
	}
	live(t, s, "p", "c") // the plug-in that is connected stays so
	until(t, "the pod is removed", func() bool { return p.has("remove-pod p name-p") })
}

func TestAPluginAdjustsASpecification(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	p := &plugin{adjust: &api.ContainerAdjustment{}}
	p.adjust.AddEnv("B", "2")
	p.adjust.AddEnv("A", "3")
	p.adjust.AddAnnotation("x", "y")
	p.adjust.AddMount(&api.Mount{Destination: "/data", Source: "/srv", Type: "bind", Options: []string{"bind", "ro"}})
	p.adjust.AddDevice(&api.LinuxDevice{Path: "/dev/thing", Type: "c", Major: 1, Minor: 3})
	p.adjust.SetLinuxCPUShares(512)
	p.adjust.SetLinuxMemoryLimit(1 << 30)
	p.adjust.SetLinuxOomScoreAdj(new(77))
	u := &api.ContainerUpdate{}
	u.SetContainerId("other")
	u.SetLinuxCPUShares(99)
	p.update = []*api.ContainerUpdate{u}
	join(t, s, p)
	oci := ociSpec()
	c := container("c", "p")
	if err := s.AdjustSpec(t.Context(), c, c.Config, oci); err != nil {
		t.Fatal(err)
	}
	r := oci.Linux.Resources
	if !slices.Equal(slices.Sorted(slices.Values(oci.Process.Env)), []string{"A=3", "B=2"}) || oci.Annotations["x"] != "y" ||
		len(oci.Mounts) != 2 || len(oci.Linux.Devices) != 1 || *r.CPU.Shares != 512 || *r.Memory.Limit != 1<<30 || *oci.Process.OOMScoreAdj != 77 {
		t.Errorf("got %+v %+v", oci, oci.Process)
	}
	until(t, "the other container is updated", func() bool { return pods.called("update other 99") })
}

// PROPERTIES 22: what berth cannot give, or builds on itself, is refused by name.
func TestAnAdjustmentThatCannotBeHonouredIsRefused(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	for want, change := range map[string]func(a *api.ContainerAdjustment){
		"linux.cgroupsPath": func(a *api.ContainerAdjustment) { a.SetLinuxCgroupsPath("/elsewhere") },
		"the pid namespace": func(a *api.ContainerAdjustment) {
			a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "pid", Path: "/proc/1/ns/pid"})
		},
		"io.kubernetes.cri": func(a *api.ContainerAdjustment) { a.AddAnnotation("io.kubernetes.cri.sandbox-id", "q") },
		"mount at": func(a *api.ContainerAdjustment) {
			a.AddMount(&api.Mount{Destination: "/", Source: "/srv", Type: "bind"})
		},
		"CDI devices":                   func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: "a/b=c"}) },
		"linux.resources.rdt_class":     func(a *api.ContainerAdjustment) { a.SetLinuxRDTClass("x") },
		"process.oomScoreAdj 2000":      func(a *api.ContainerAdjustment) { a.SetLinuxOomScoreAdj(new(2000)) },
		"RLIMIT_NOFILE":                 func(a *api.ContainerAdjustment) { a.AddRlimit("RLIMIT_NOFILE", 1, 2) },
		"the type \"x\" cannot be made": func(a *api.ContainerAdjustment) { a.AddDevice(&api.LinuxDevice{Path: "/dev/a", Type: "x"}) },
	} {
		p.adjust = &api.ContainerAdjustment{}
		change(p.adjust)
		oci := ociSpec()
		c := container("c", "p")
		err := s.AdjustSpec(t.Context(), c, c.Config, oci)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if len(oci.Mounts) != 1 || oci.Linux.CgroupsPath != "/c" {
			t.Errorf("%s: the specification was changed", want)
		}
		s.Removed("c")
	}
}

func TestAPluginRefuses(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{fail: map[string]error{"run": errors.New("not here"), "create": errors.New("not so"), "start": errors.New("not now")}})
	c := container("c", "p")
	for want, err := range map[string]error{
		"not here": s.SandboxRun(t.Context(), sandbox("p")),
		"not so":   s.AdjustSpec(t.Context(), c, c.Config, ociSpec()),
		"not now":  s.Starting(t.Context(), c),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	s.Removed("c") // as the controller does with what was not made
	until(t, "the plug-in forgets the container", func() bool { return p.has("remove c of p") })
}

// PROPERTIES 27: a plug-in that hangs is disconnected, and the calls go on without it.
func TestAPluginThatHangsIsDisconnected(t *testing.T) {
	s, _ := start(t, 100*time.Millisecond)
	hang := make(chan struct{})
	defer close(hang)
	join(t, s, &plugin{hang: map[string]chan struct{}{"create": hang, "stop": hang}})
	live(t, s, "p", "c") // with an error of a call it would fail
	p := join(t, s, &plugin{})
	live(t, s, "p2", "c2")
	until(t, "another plug-in is notified", func() bool { return p.has("remove-pod p2 name-p2") })
}

// PROPERTIES 27: a container that is made while a plug-in connects is reported to it exactly once.
// A container whose creation was relayed before the plug-in took part, and that was listed after it
// was synchronised, used to be lost.
func TestAPluginThatRegistersMeanwhileLosesNothing(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	slow := &plugin{hang: map[string]chan struct{}{"create": make(chan struct{})}}
	join(t, s, slow)
	if err := s.SandboxRun(t.Context(), sandbox("p")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	create := func(id string) {
		wg.Go(func() {
			c := container(id, "p")
			if err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec()); err != nil {
				t.Error(err)
			}
		})
	}
	create("before")
	until(t, "the creation is relayed", func() bool { return slow.has("create before name-before") })
	late := &plugin{hang: map[string]chan struct{}{"synchronize": make(chan struct{})}}
	connect(t, s, late)
	close(slow.hang["create"])
	until(t, "the second plug-in is being synchronised", func() bool {
		return len(late.all()) > 0
	})
	for i := range 5 {
		create(fmt.Sprint("during", i))
	}
	close(late.hang["synchronize"])
	wg.Wait()
	create("after")
	wg.Wait()
	seen := map[string]int{}
	for _, g := range late.all() {
		verb, rest, _ := strings.Cut(g, " ")
		if verb == "create" {
			rest, _, _ = strings.Cut(rest, " ")
		}
		for _, id := range strings.Split(rest, ",") {
			seen[id]++
		}
	}
	for _, id := range []string{"before", "during0", "during1", "during2", "during3", "during4", "after"} {
		if seen[id] != 1 {
			t.Errorf("%s is known %d times: %q", id, seen[id], late.all())
		}
	}
}

// PROPERTIES 27: a plug-in that dies delays no call, and is synchronised when it connects again.
func TestAPluginThatDiesHoldsNothingUp(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	p.stub.Stop()
	live(t, s, "p", "c")
	again := join(t, s, &plugin{})
	live(t, s, "p2", "c2")
	until(t, "it is notified when it is back", func() bool { return again.has("remove-pod p2 name-p2") })
}

func TestAPluginIsSynchronisedWithWhatAnEarlierBerthLeft(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	pods.mu.Lock()
	pods.targets["p"], pods.targets["c"] = sandbox("p"), container("c", "p")
	pods.mu.Unlock()
	s.restore(t.Context())
	p := join(t, s, &plugin{})
	if !p.has("synchronize c,p") {
		t.Errorf("got %q", p.all())
	}
}

func TestAPluginUpdatesContainersByItself(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	good, bad := &api.ContainerUpdate{}, &api.ContainerUpdate{}
	good.SetContainerId("c1")
	good.SetLinuxCPUShares(5)
	bad.SetContainerId("c2")
	bad.SetLinuxRDTClass("x")
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{good, bad})
	if err != nil || len(failed) != 1 || failed[0].GetContainerId() != "c2" || !pods.called("update c1 5") {
		t.Errorf("failed %v, %v", failed, err)
	}
}

// A plug-in may ask for the eviction of a container by itself, and in its answers about another
// container. All of that used to be dropped in silence, because the library does not pass it on.
func TestAPluginEvictsContainers(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	p := join(t, s, &plugin{evict: map[string]*api.ContainerEviction{
		"CreateContainer":  {ContainerId: "while-one-is-made", Reason: "no room"},
		"UpdateContainer":  {ContainerId: "while-one-is-changed"},
		"UpdateContainers": {ContainerId: "by-itself"},
	}})
	if err := s.SandboxRun(t.Context(), sandbox("p")); err != nil {
		t.Fatal(err)
	}
	c := container("c", "p")
	if err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec()); err != nil {
		t.Fatal(err)
	}
	until(t, "the first is evicted", func() bool { return pods.called("stop while-one-is-made") })
	if _, err := s.Updating(t.Context(), c, &runtimeapi.LinuxContainerResources{CpuShares: 5}); err != nil {
		t.Fatal(err)
	}
	until(t, "the second is evicted", func() bool { return pods.called("stop while-one-is-changed") })
	if failed, err := p.stub.UpdateContainers(nil); len(failed) > 0 || err != nil {
		t.Errorf("failed %v, %v", failed, err)
	}
	until(t, "the third is evicted", func() bool { return pods.called("stop by-itself") })
	pods.mu.Lock()
	defer pods.mu.Unlock()
	if len(pods.calls) != 3 {
		t.Errorf("called: %q", pods.calls)
	}
}

// A call that fails changes nothing else: what other plug-ins asked for because of it is dropped.
func TestAnEvictionForACallThatFailsIsDropped(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	evict := map[string]*api.ContainerEviction{"CreateContainer": {ContainerId: "x"}}
	p := join(t, s, &plugin{evict: evict})
	p.adjust = &api.ContainerAdjustment{}
	p.adjust.SetLinuxCgroupsPath("/elsewhere")
	c := container("c", "p")
	if err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec()); err == nil {
		t.Fatal("the adjustment was taken")
	}
	p.adjust = nil
	p.evict["CreateContainer"] = &api.ContainerEviction{ContainerId: "y"}
	if err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec()); err != nil {
		t.Fatal(err)
	}
	until(t, "the later one is evicted", func() bool { return pods.called("stop y") })
	if pods.called("stop x") {
		t.Error("a container was evicted for one that was not made")
	}
}

func TestWhatWaitsIsBounded(t *testing.T) {
	q := newQueue[int](3)
	dropped := 0
	for i := range 10 {
		if q.put(i) {
			dropped++
		}
	}
	first, _ := q.take()
	if dropped != 7 || first != 7 {
		t.Errorf("dropped %d; %d is first", dropped, first)
	}

	r := newRequests()
	for i := range maxRequests {
		if !r.offer(request{update: shares(fmt.Sprint(i), 1)}) {
			t.Fatalf("number %d was refused", i)
		}
	}
	if r.offer(request{update: shares("one more", 1)}) {
		t.Error("one more was taken")
	}
	taken, _ := r.next()
	if !r.offer(request{update: shares("one more", 1)}) {
		t.Error("one was refused although there is room")
	}
	r.done(taken.about())
	r = newRequests()
	for range maxPerContainer {
		r.offer(request{update: shares("c", 1)})
	}
	if r.offer(request{update: shares("c", 1)}) || !r.offer(request{update: shares("d", 1)}) {
		t.Error("the requests about one container take the room of others")
	}
}

func TestAPluginChangesAnUpdate(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	r := &runtimeapi.LinuxContainerResources{CpuShares: 5, MemoryLimitInBytes: 1 << 20, OomScoreAdj: 3}
	c := container("c", "p")
	if got, err := s.Updating(t.Context(), c, r); err != nil || got != r {
		t.Errorf("without a plug-in: %v %v", got, err)
	}
	p := join(t, s, &plugin{shares: 77})
	got, err := s.Updating(t.Context(), c, r)
	if err != nil || got.GetCpuShares() != 77 || got.GetMemoryLimitInBytes() != 1<<20 || got.GetOomScoreAdj() != 3 || r.GetCpuShares() != 5 {
		t.Errorf("got %v %v", got, err)
	}
	s.Updated(t.Context(), c, got)
	until(t, "the plug-in is notified", func() bool { return p.has("update c 5") && p.has("updated c") && pods.called("update other 1") })
}

// After the kubelet had set the CPUs alone, plug-ins were shown a container without a memory limit;
// what plug-ins had changed themselves was not shown at all. PROPERTIES 22.
func TestPluginsAreShownWhatAContainerHasAfterUpdates(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	c := container("c", "p")
	oci := ociSpec()
	oci.Linux.Resources = &specs.LinuxResources{
		Memory:         &specs.LinuxMemory{Limit: new(int64(1 << 30))},
		CPU:            &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(50_000)), Period: new(uint64(100_000))},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}, {Pagesize: "1GB", Limit: 2}},
		Unified:        map[string]string{"a": "1", "b": "2"},
	}
	if err := s.AdjustSpec(t.Context(), c, c.Config, oci); err != nil {
		t.Fatal(err)
	}
	s.Updated(t.Context(), c, &runtimeapi.LinuxContainerResources{
		CpusetCpus:     "2-3",
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 3}},
		Unified:        map[string]string{"b": "3"},
	})
	p := join(t, s, &plugin{})
	u := &api.ContainerUpdate{}
	u.SetContainerId("c")
	u.SetLinuxCPUShares(77)
	if failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil || len(failed) > 0 {
		t.Fatal(failed, err)
	}
	s.ask([]*api.ContainerUpdate{{ContainerId: "c", Linux: &api.LinuxContainerUpdate{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(9)}}}}}, nil)
	shown := func() *api.LinuxResources { return s.known.container("c").GetLinux().GetResources() }
	until(t, "what a plug-in asks for is shown", func() bool { return shown().GetCpu().GetQuota().GetValue() == 9 })
	want := &api.LinuxResources{
		Memory:         &api.LinuxMemory{Limit: api.Int64(1 << 30)},
		Cpu:            &api.LinuxCPU{Cpus: "2-3", Shares: api.UInt64(77), Quota: api.Int64(9), Period: api.UInt64(100_000)},
		HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 1}, {PageSize: "1GB", Limit: 3}},
		Unified:        map[string]string{"a": "1", "b": "3"},
	}
	if !proto.Equal(shown(), want) {
		t.Errorf("got  %v\nwant %v", shown(), want)
	}
}

// What happened while the specification of a container was read, because berth serves meanwhile,
// was overwritten: plug-ins were synchronised for ever with a container that had ended.
func TestWhatHappensDuringARestoreIsKept(t *testing.T) {
	for what, tt := range map[string]struct {
		meanwhile func(s *Service, p *pods, c pod.Target)
		want      string
	}{
		"nothing": {func(*Service, *pods, pod.Target) {}, "CONTAINER_RUNNING 7"},
		"it ends": {func(s *Service, p *pods, c pod.Target) {
			ended := make(chan struct{})
			close(ended)
			c.Running, c.Ended = false, ended
			p.set(c)
			_ = s.Ended(t.Context(), c, exit.Fact{ID: c.ID, Code: 1, Measured: true})
		}, ""},
		"it is removed": {func(s *Service, p *pods, c pod.Target) {
			p.mu.Lock()
			delete(p.targets, c.ID)
			p.mu.Unlock()
			s.Removed(c.ID)
		}, ""},
		"it starts": {func(s *Service, p *pods, c pod.Target) {
			c.Process.Pid = 8
			p.set(c)
			s.Started(t.Context(), c)
		}, "CONTAINER_RUNNING 8"},
	} {
		s, p := start(t, 10*time.Second)
		c := container("c", "p")
		c.Process.Pid = 7
		p.set(sandbox("p"))
		p.set(c)
		s.cfg.Spec = func(context.Context, string) (*specs.Spec, error) {
			tt.meanwhile(s, p, c)
			return ociSpec(), nil
		}
		s.restore(t.Context())
		got := ""
		if _, cts := s.known.all(); len(cts) > 0 {
			got = fmt.Sprint(cts[0].GetState(), " ", cts[0].GetPid())
		}
		if got != tt.want {
			t.Errorf("%s: plug-ins are synchronised with %q, want %q", what, got, tt.want)
		}
	}
}

// The end of a container and its removal come by different ways. A plug-in was notified of the end
// after the removal.
func TestAnEndIsNotReportedAfterTheRemoval(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	c := container("c", "p")
	if err := errors.Join(s.SandboxRun(t.Context(), sandbox("p")), s.AdjustSpec(t.Context(), c, c.Config, ociSpec())); err != nil {
		t.Fatal(err)
	}
	s.Started(t.Context(), c)
	s.Removed("c")
	s.Removed("p")
	if err := errors.Join(s.Ended(t.Context(), c, exit.Fact{ID: "c", Code: 7, Measured: true}), s.Ended(t.Context(), sandbox("p"), exit.Fact{ID: "p"})); err != nil {
		t.Fatal(err)
	}
	if err := s.SandboxRun(t.Context(), sandbox("p2")); err != nil {
		t.Fatal(err)
	}
	s.Removed("p2")
	until(t, "the events before it are delivered", func() bool { return p.has("remove-pod p2 name-p2") })
	var ends []string
	for _, g := range p.all() {
		if strings.HasPrefix(g, "stop") || strings.HasPrefix(g, "remove") {
			ends = append(ends, g)
		}
	}
	want := []string{"stop c 0", "remove c of p", "stop-pod p", "remove-pod p name-p", "stop-pod p2", "remove-pod p2 name-p2"}
	if !slices.Equal(ends, want) {
		t.Errorf("got  %q\nwant %q", ends, want)
	}
}

// runToTheEnd runs a service until the test ends, and then removes the directory that it uses.
func runToTheEnd(t *testing.T, s *Service, dir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
}
