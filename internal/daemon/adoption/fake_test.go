// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/services/sandbox/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// fake is a containerd on a socket, with the pods of its CRI plug-in. The plug-in serves unless the file
// off is there, which a --switch makes and removes.
type fake struct {
	t   *testing.T
	dir string

	mu         sync.Mutex
	uuid       string
	uuidOff    string // what it is called while the plug-in is off; "" for uuid
	version    string
	containers map[string]*containers.Container
	sandboxes  map[string]*types.Sandbox
	tasks      map[string]*task.Process
	fails      map[string]bool // container objects that cannot be changed
	silent     int             // how many questions about tasks are not answered while the plug-in is off
	asked      int             // questions about tasks
	waits      map[string]func(context.Context) (*tasks.WaitResponse, error)
	updated    func(id string) // is called before a container object is changed
}

// startFake starts a containerd without pods.
func startFake(t *testing.T, uuid string) *fake {
	t.Helper()
	dir, err := os.MkdirTemp("", "adoption") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{
		t:          t,
		dir:        dir,
		uuid:       uuid,
		version:    "v2.4.2",
		containers: map[string]*containers.Container{},
		sandboxes:  map[string]*types.Sandbox{},
		tasks:      map[string]*task.Process{},
		fails:      map[string]bool{},
	}
	socket, err := new(net.ListenConfig).Listen(t.Context(), "unix", f.address())
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	containers.RegisterContainersServer(s, fakeContainers{f: f})
	sandbox.RegisterStoreServer(s, fakeSandboxes{f: f})
	tasks.RegisterTasksServer(s, fakeTasks{f: f})
	images.RegisterImagesServer(s, fakeImages{})
	version.RegisterVersionServer(s, fakeVersion{f: f})
	introspection.RegisterIntrospectionServer(s, fakeIntrospection{f: f})
	runtimeapi.RegisterRuntimeServiceServer(s, fakeCRI{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(socket) }()
	t.Cleanup(func() {
		s.Stop()
		<-served
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fake) address() string { return filepath.Join(f.dir, "containerd.sock") }

func (f *fake) off() string { return filepath.Join(f.dir, "off") }

// turnOff is the command that turns the plug-in off, and turnOn the one that turns it on.
func (f *fake) turnOff() string { return "touch " + f.off() }
func (f *fake) turnOn() string  { return "rm -f " + f.off() }

func (f *fake) serves() bool {
	_, err := os.Stat(f.off())
	return err != nil
}

// set turns the plug-in on or off.
func (f *fake) set(serves bool) {
	f.t.Helper()
	err := os.Remove(f.off())
	if !serves {
		err = os.WriteFile(f.off(), nil, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// pod makes a pod of the plug-in's with a container, both of which run.
func (f *fake) pod(pod, container string) {
	f.add(pod, spec.KindSandbox, "io.cri-containerd.sandbox.metadata",
		fmt.Sprintf(`{"Version":"v1","Metadata":{"ID":%q,"Config":{"metadata":{"name":%q,"uid":"u","namespace":"default"}}}}`, pod, pod))
	f.add(container, spec.KindContainer, "io.cri-containerd.container.metadata",
		fmt.Sprintf(`{"Version":"v1","Metadata":{"ID":%q,"SandboxID":%q,"Config":{"metadata":{"name":%q},"image":{"image":"i"}},"ImageRef":"i"}}`, container, pod, container))
	dir := filepath.Join(f.dir, "io.containerd.grpc.v1.cri", "containers", container)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), []byte(`{"Version":"v1","CreatedAt":1000,"StartedAt":2000}`), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) add(id, kind, extension, metadata string) {
	of, err := typeurl.MarshalAnyToProto(&specs.Spec{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id] = &containers.Container{
		ID:          id,
		Labels:      map[string]string{spec.LabelKind: kind},
		Runtime:     &containers.Container_Runtime{Name: "io.containerd.runc.v2"},
		Spec:        of,
		SnapshotKey: id,
		Extensions:  map[string]*anypb.Any{extension: {TypeUrl: "the plug-in's", Value: []byte(metadata)}},
	}
	f.tasks[id] = &task.Process{ID: id, Status: task.Status_RUNNING}
}

// remove removes a container object with its task.
func (f *fake) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, id)
	delete(f.tasks, id)
	delete(f.sandboxes, id)
}

// guards lists the guards that there are.
func (f *fake) guards() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, s := range f.sandboxes {
		if s.GetLabels()["io.berth.adopting"] != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// owned lists which container objects carry berth's label.
func (f *fake) owned() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, c := range f.containers {
		if c.GetLabels()["io.berth.owner"] != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// host is a berth that adopts.
type host struct {
	t        *testing.T
	cfg      config.Config
	patience time.Duration // how long containerd and its shims may take to answer; 0: as long as ever
	said     string        // by the last call
	onSaid   func(what string)
}

func newHost(t *testing.T) *host {
	t.Helper()
	cfg := config.Default()
	cfg.Root, cfg.State = t.TempDir(), t.TempDir()
	cfg.Runtimes = map[string]config.Runtime{"runc": {Type: "io.containerd.runc.v2", HostProcess: true}}
	return &host{t: t, cfg: cfg}
}

// adopt runs an adoption at a containerd.
func (h *host) adopt(f *fake, r adopt.Request) error {
	h.t.Helper()
	h.said = ""
	var mu sync.Mutex
	r.CNICache = filepath.Join(h.cfg.State, "cni")
	r.Said = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		what := fmt.Sprintf(format, args...)
		if h.said += what + "\n"; h.onSaid != nil {
			h.onSaid(what)
		}
	}
	r.Output = h.t.Output()
	cfg := h.cfg
	cfg.Containerd.Address = f.address()
	return run(h.t.Context(), cfg, r, cmp.Or(h.patience, answerTimeout))
}

// owners returns whose the pods are that are on record.
func (h *host) owners() map[string]state.Owner {
	h.t.Helper()
	recs, err := openRecords(h.cfg.Root, adopt.Request{})
	if err != nil {
		h.t.Fatal(err)
	}
	defer recs.close()
	owners := map[string]state.Owner{}
	for id, r := range recs.now {
		owners[id] = r.Sandbox.Status.Owner
	}
	return owners
}

// expect runs an adoption whose error says something; "" for none.
func (h *host) expect(f *fake, r adopt.Request, says ...string) {
	h.t.Helper()
	err := h.adopt(f, r)
	if (err == nil) != (len(says) == 0) {
		h.t.Fatalf("back %t, dry run %t: %v\n%s", r.Back, r.DryRun, err, h.said)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			h.t.Errorf("back %t, dry run %t: it does not say %q: %v", r.Back, r.DryRun, s, err)
		}
	}
}

type fakeContainers struct {
	containers.UnimplementedContainersServer
	f *fake
}

func (s fakeContainers) List(context.Context, *containers.ListContainersRequest) (*containers.ListContainersResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return &containers.ListContainersResponse{Containers: slices.Collect(maps.Values(s.f.containers))}, nil
}

func (s fakeContainers) Get(_ context.Context, r *containers.GetContainerRequest) (*containers.GetContainerResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	c := s.f.containers[r.GetID()]
	if c == nil {
		return nil, status.Error(codes.NotFound, r.GetID())
	}
	return &containers.GetContainerResponse{Container: c}, nil
}

func (s fakeContainers) Update(_ context.Context, r *containers.UpdateContainerRequest) (*containers.UpdateContainerResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	c := r.GetContainer()
	if s.f.updated != nil {
		s.f.updated(c.GetID())
	}
	switch {
	case s.f.containers[c.GetID()] == nil:
		return nil, status.Error(codes.NotFound, c.GetID())
	case s.f.fails[c.GetID()]:
		return nil, status.Error(codes.Internal, "it is made to fail")
	}
	s.f.containers[c.GetID()] = c
	return &containers.UpdateContainerResponse{Container: c}, nil
}

type fakeSandboxes struct {
	sandbox.UnimplementedStoreServer
	f *fake
}

func (s fakeSandboxes) List(_ context.Context, r *sandbox.StoreListRequest) (*sandbox.StoreListResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	resp := &sandbox.StoreListResponse{}
	for _, b := range s.f.sandboxes {
		if of := b.GetLabels()["io.berth.adopting"]; len(r.GetFilters()) == 0 || of != "" && strings.Contains(r.GetFilters()[0], of) {
			resp.List = append(resp.List, b)
		}
	}
	return resp, nil
}

func (s fakeSandboxes) Get(_ context.Context, r *sandbox.StoreGetRequest) (*sandbox.StoreGetResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	b := s.f.sandboxes[r.GetSandboxID()]
	if b == nil {
		return nil, status.Error(codes.NotFound, r.GetSandboxID())
	}
	return &sandbox.StoreGetResponse{Sandbox: b}, nil
}

func (s fakeSandboxes) Create(_ context.Context, r *sandbox.StoreCreateRequest) (*sandbox.StoreCreateResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	id := r.GetSandbox().GetSandboxID()
	if s.f.sandboxes[id] != nil {
		return nil, status.Error(codes.AlreadyExists, id)
	}
	s.f.sandboxes[id] = r.GetSandbox()
	return &sandbox.StoreCreateResponse{Sandbox: r.GetSandbox()}, nil
}

func (s fakeSandboxes) Update(_ context.Context, r *sandbox.StoreUpdateRequest) (*sandbox.StoreUpdateResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.sandboxes[r.GetSandbox().GetSandboxID()] = r.GetSandbox()
	return &sandbox.StoreUpdateResponse{Sandbox: r.GetSandbox()}, nil
}

// Delete fails while the file down is there, which a --switch can make.
func (s fakeSandboxes) Delete(_ context.Context, r *sandbox.StoreDeleteRequest) (*sandbox.StoreDeleteResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if _, err := os.Stat(filepath.Join(s.f.dir, "down")); err == nil {
		return nil, status.Error(codes.Unavailable, "it is down")
	}
	delete(s.f.sandboxes, r.GetSandboxID())
	return &sandbox.StoreDeleteResponse{}, nil
}

type fakeTasks struct {
	tasks.UnimplementedTasksServer
	f *fake
}

// Get finds no task while the plug-in serves and the file ended is there, nor while the file deleted-ID is.
func (s fakeTasks) Get(_ context.Context, r *tasks.GetRequest) (*tasks.GetResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.asked++
	if !s.f.serves() && s.f.silent > 0 {
		s.f.silent--
		return nil, status.Error(codes.DeadlineExceeded, "its shim is slow")
	}
	p := s.f.tasks[r.GetContainerID()]
	_, deleted := os.Stat(filepath.Join(s.f.dir, "deleted-"+r.GetContainerID()))
	if _, err := os.Stat(filepath.Join(s.f.dir, "ended")); err == nil && s.f.serves() || p == nil || deleted == nil {
		return nil, status.Error(codes.NotFound, r.GetContainerID())
	}
	return &tasks.GetResponse{Process: p}, nil
}

// Wait answers for the tasks that are in waits.
func (s fakeTasks) Wait(ctx context.Context, r *tasks.WaitRequest) (*tasks.WaitResponse, error) {
	s.f.mu.Lock()
	wait := s.f.waits[r.GetContainerID()]
	s.f.mu.Unlock()
	if wait == nil {
		return nil, status.Error(codes.Unavailable, "it is made to fail")
	}
	return wait(ctx)
}

type fakeImages struct {
	images.UnimplementedImagesServer
}

func (fakeImages) List(context.Context, *images.ListImagesRequest) (*images.ListImagesResponse, error) {
	return &images.ListImagesResponse{}, nil
}

type fakeVersion struct {
	version.UnimplementedVersionServer
	f *fake
}

func (s fakeVersion) Version(context.Context, *emptypb.Empty) (*version.VersionResponse, error) {
	return &version.VersionResponse{Version: s.f.version}, nil
}

type fakeIntrospection struct {
	introspection.UnimplementedIntrospectionServer
	f *fake
}

func (s fakeIntrospection) Server(context.Context, *emptypb.Empty) (*introspection.ServerResponse, error) {
	if s.f.uuidOff != "" && !s.f.serves() {
		return &introspection.ServerResponse{UUID: s.f.uuidOff}, nil
	}
	return &introspection.ServerResponse{UUID: s.f.uuid}, nil
}

func (s fakeIntrospection) Plugins(_ context.Context, r *introspection.PluginsRequest) (*introspection.PluginsResponse, error) {
	resp := &introspection.PluginsResponse{}
	switch {
	case strings.Contains(r.GetFilters()[0], "content"):
		resp.Plugins = []*introspection.Plugin{{ID: "content", Exports: map[string]string{"root": filepath.Join(s.f.dir, "content")}}}
	case s.f.serves():
		resp.Plugins = []*introspection.Plugin{{ID: "cri"}}
	}
	return resp, nil
}

type fakeCRI struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (fakeCRI) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{}}, nil
}
