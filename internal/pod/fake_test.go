// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/feed"
	"berth/internal/logs"
	"berth/internal/network"
	"berth/internal/pidfd"
	"berth/internal/podfiles"
	"berth/internal/spec"
	"berth/internal/state"
)

// world is everything outside, in memory: containerd, the kernel, the network, the disk. What is to
// fail is set by name; what was done is recorded. It outlives a controller, so that a restart finds
// it.
type world struct {
	mu        sync.Mutex
	tasks     map[string]*fakeTask
	objects   map[string]bool // containers, snapshots and sandboxes, by kind and ID
	netns     map[string]bool
	cni       map[string]bool
	watched   map[string]bool
	sandboxes map[string]state.SandboxRecord
	ctrs      map[string]state.ContainerRecord
	fail      map[string]error         // operation, or operation and ID
	block     map[string]chan struct{} // likewise
	slow      map[string]time.Duration // by operation and ID
	panics    map[string]bool          // by operation
	oom       map[string]uint64        // by cgroup
	did       []string
	nextPid   uint32
	names     int
	hung      map[string]bool // tasks whose shims do not answer
	waits     map[string]int  // WaitTask in flight, by ID
	exact     bool
	down      bool // containerd
	c         *Controller
	hooks     Hooks
	devices   Devices
	owned     int                    // network namespaces that a user namespace owns
	mapped    int                    // snapshots with the owners of a user namespace
	pulled    bool                   // the image atRegistry is on the node
	specs     map[string]*specs.Spec // of containers, by ID
	stdio     map[string]bool        // directories
}

type fakeTask struct {
	pid            uint32
	started, ended bool
	seen           bool // by the shim
	code           uint32
	at             time.Time
	done           chan struct{}
	updates        []*specs.LinuxResources
}

func newWorld() *world {
	return &world{
		tasks: map[string]*fakeTask{}, objects: map[string]bool{}, netns: map[string]bool{}, cni: map[string]bool{}, watched: map[string]bool{},
		sandboxes: map[string]state.SandboxRecord{}, ctrs: map[string]state.ContainerRecord{}, fail: map[string]error{}, block: map[string]chan struct{}{}, slow: map[string]time.Duration{}, panics: map[string]bool{}, specs: map[string]*specs.Spec{}, stdio: map[string]bool{},
		oom: map[string]uint64{}, waits: map[string]int{}, nextPid: 100, exact: true,
	}
}

// step is the door of every operation: recorded, then blocked or failed if that was asked for.
func (w *world) step(ctx context.Context, op, id string) error {
	w.mu.Lock()
	w.did = append(w.did, op+" "+id)
	ch, err := w.block[op+" "+id], w.fail[op+" "+id]
	if ch == nil {
		ch = w.block[op]
	}
	if err == nil {
		err = w.fail[op]
	}
	if w.down && op != "commit" && op != "netns" && op != "cni" {
		err = errdefs.ErrUnavailable
	}
	slow, panics := w.slow[op+" "+id], w.panics[op]
	w.mu.Unlock()
	if panics {
		panic(op)
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if ch != nil {
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (w *world) make(ctx context.Context, kind, id string) error {
	if err := w.step(ctx, "create-"+kind, id); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects[kind+"/"+id] = true
	return nil
}

func (w *world) unmake(ctx context.Context, kind, id string) error {
	if err := w.step(ctx, "delete-"+kind, id); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.objects[kind+"/"+id] {
		return errdefs.ErrNotFound
	}
	delete(w.objects, kind+"/"+id)
	return nil
}

func (w *world) noteIDs(ids spec.UserIDs) {
	if ids == (spec.UserIDs{UID: 1000, GID: 2000, UIDs: 500, GIDs: 600}) {
		w.set(func() { w.mapped++ })
	}
}

// runtime

type fakeRuntime struct{ *world }

func (w fakeRuntime) CreateSandbox(ctx context.Context, id string, _ Handler) error {
	return w.make(ctx, "sandbox", id)
}
func (w fakeRuntime) DeleteSandbox(ctx context.Context, id string) error {
	return w.unmake(ctx, "sandbox", id)
}
func (w fakeRuntime) CreateContainer(ctx context.Context, o Object) error {
	w.set(func() { w.specs[o.ID] = o.Spec })
	return w.make(ctx, "container", o.ID)
}
func (w fakeRuntime) DeleteContainer(ctx context.Context, id string) error {
	return w.unmake(ctx, "container", id)
}
func (w fakeRuntime) PrepareSnapshot(ctx context.Context, l Layer) error {
	w.noteIDs(l.IDs)
	return w.make(ctx, "snapshot", l.Key)
}
func (w fakeRuntime) DeleteSnapshot(ctx context.Context, _, key string) error {
	return w.unmake(ctx, "snapshot", key)
}
func (w fakeRuntime) RenewSnapshot(ctx context.Context, _, key, _ string) error {
	return w.step(ctx, "renew-snapshot", key)
}
func (w fakeRuntime) MountImage(ctx context.Context, v ImageView) error {
	w.noteIDs(v.IDs)
	return w.make(ctx, "snapshot", v.Key)
}
func (w fakeRuntime) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	if err := w.step(ctx, "spec", id); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.specs[id]
	if s == nil {
		return &specs.Spec{}, nil
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out := &specs.Spec{}
	return out, json.Unmarshal(b, out)
}
func (w fakeRuntime) UpdateSpec(ctx context.Context, id string, s *specs.Spec) error {
	if err := w.step(ctx, "update-spec", id); err != nil {
		return err
	}
	w.set(func() { w.specs[id] = s })
	return nil
}
func (w fakeRuntime) UpdateTask(ctx context.Context, id string, r *specs.LinuxResources) error {
	if err := w.step(ctx, "update-task", id); err != nil {
		return err
	}
	t := w.task(id)
	if t == nil {
		return errdefs.ErrNotFound
	}
	w.set(func() { t.updates = append(t.updates, r) })
	return nil
}

func (w fakeRuntime) CreateTask(ctx context.Context, r TaskRequest) (uint32, error) {
	if err := w.step(ctx, "create-task", r.ID); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nextPid++
	w.tasks[r.ID] = &fakeTask{pid: w.nextPid, done: make(chan struct{})}
	return w.nextPid, nil
}

func (w fakeRuntime) StartTask(ctx context.Context, id string) error {
	if err := w.step(ctx, "start-task", id); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks[id].started = true
	return nil
}

func (w fakeRuntime) KillTask(ctx context.Context, id string, sig unix.Signal) error {
	if err := w.step(ctx, "kill-task", id); err != nil {
		return err
	}
	if t := w.task(id); t == nil {
		return errdefs.ErrNotFound
	}
	if sig == unix.SIGKILL {
		w.exit(id, 137, true)
	}
	return nil
}

func (w fakeRuntime) DeleteTask(ctx context.Context, id string) error {
	if err := w.step(ctx, "delete-task", id); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[id]
	if t == nil {
		return errdefs.ErrNotFound
	}
	if !t.ended {
		return errors.New("cannot delete a running process")
	}
	delete(w.tasks, id)
	return nil
}

func (w *world) task(id string) *fakeTask {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tasks[id]
}

func (w fakeRuntime) TaskState(ctx context.Context, id string) (TaskState, error) {
	if err := w.step(ctx, "task-state", id); err != nil {
		return TaskState{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[id]
	if t == nil {
		return TaskState{}, errdefs.ErrNotFound
	}
	if t.ended && t.seen {
		return TaskState{Pid: t.pid, Stopped: true, Code: t.code, ExitedAt: t.at}, nil
	}
	return TaskState{Pid: t.pid, Running: t.started}, nil
}

func (w fakeRuntime) Sandboxer(string) Sandboxer { return remote{pauser{w}} }

// remote is a sandboxer of containerd: its sandboxes are not tasks that a list shows, and have a
// PID once they run.
type remote struct{ pauser }

func (r remote) Create(ctx context.Context, req SandboxRequest) (Instance, error) {
	_, err := r.runtime.CreateTask(ctx, TaskRequest{ID: req.ID})
	return Instance{}, err
}

func (r remote) Start(ctx context.Context, id string) (Instance, error) {
	if err := r.runtime.StartTask(ctx, id); err != nil {
		return Instance{}, err
	}
	st, err := r.runtime.TaskState(ctx, id)
	return Instance{Pid: st.Pid, Endpoint: state.Endpoint{Address: "ttrpc+unix:///" + id, Version: 3}}, err
}

func (w fakeRuntime) WaitTask(ctx context.Context, id string) (TaskState, error) {
	t := w.task(id)
	if t == nil {
		return TaskState{}, errdefs.ErrNotFound
	}
	w.set(func() { w.waits[id]++ })
	defer w.set(func() { w.waits[id]-- })
	select {
	case <-t.done:
		return TaskState{Stopped: true, Code: t.code, ExitedAt: t.at}, nil
	case <-ctx.Done():
		return TaskState{}, ctx.Err()
	}
}

func (w fakeRuntime) Inventory(ctx context.Context) (Inventory, error) {
	if err := w.step(ctx, "inventory", ""); err != nil {
		return Inventory{}, err
	}
	inv := Inventory{Containers: map[string]map[string]string{}, Tasks: map[string]TaskState{}, Sandboxes: map[string]bool{}, Snapshots: map[string]string{}}
	w.mu.Lock()
	var ids []string
	for id := range w.tasks {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	inv.Unreachable = map[string]bool{}
	for _, id := range ids {
		if w.isHung(id) {
			inv.Unreachable[id] = true
		} else if st, err := w.TaskState(ctx, id); err == nil {
			inv.Tasks[id] = st
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range w.objects {
		switch kind, id, _ := strings.Cut(o, "/"); kind {
		case "container":
			inv.Containers[id] = nil
		case "sandbox":
			inv.Sandboxes[id] = true
		case "snapshot":
			inv.Snapshots[id] = "fake"
		}
	}
	return inv, nil
}

// exit ends a process. report says whether the kernel reports it now; otherwise no witness does.
func (w *world) exit(id string, code uint32, report bool) {
	w.mu.Lock()
	t := w.tasks[id]
	if t == nil || t.ended {
		w.mu.Unlock()
		return
	}
	t.ended, t.seen, t.code, t.at = true, true, code, time.Now()
	close(t.done)
	watched, exact, c := w.watched[id], w.exact, w.c
	w.mu.Unlock()
	if report && watched {
		c.Exited(exit.Fact{ID: id, Code: code, Measured: exact, At: t.at, Origin: exit.Kernel})
	}
}

// kernel

type fakeKernel struct{ *world }

func (w fakeKernel) Watch(id string, p pidfd.Process) (pidfd.Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[id]
	if t == nil || t.pid != p.Pid || t.ended && !w.watched[id] && p.StartTicks != 0 {
		return p, errdefs.ErrNotFound
	}
	w.watched[id] = true
	p.StartTicks, p.BootID = 1, "boot"
	return p, nil
}

func (w fakeKernel) Forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watched, id)
}

func (w fakeKernel) Signal(id string, sig unix.Signal) error {
	if err := w.step(context.Background(), "signal", id); err != nil {
		return err
	}
	w.mu.Lock()
	t, ok := w.tasks[id], w.watched[id]
	gone := !ok || t == nil || t.ended
	w.mu.Unlock()
	if gone {
		return errdefs.ErrNotFound
	}
	if sig == unix.SIGKILL {
		w.exit(id, 137, true)
	}
	return nil
}

func (w fakeKernel) Look(id string) (alive, watched bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[id]
	return t != nil && !t.ended && w.watched[id], w.watched[id]
}

func (w fakeKernel) Exact() bool { return w.exact }

// the rest

type fakeCgroups struct{ *world }

func (w fakeCgroups) Of(pid uint32) (string, error)         { return fmt.Sprint("cg", pid), nil }
func (w fakeCgroups) KillAll(context.Context, string) error { return nil }
func (w fakeCgroups) OOMKills(dir string) (uint64, error) {
	if err := w.step(context.Background(), "oom", dir); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.oom[dir], nil
}

type fakeNetwork struct{ *world }

func (w fakeNetwork) PathFor(id string) string { return "/netns/" + id }
func (w fakeNetwork) CreateNS(ctx context.Context, path string) error {
	if err := w.step(ctx, "netns", path); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.netns[path] = true
	return nil
}

func (w fakeNetwork) CreateOwnedNS(ctx context.Context, path string, _ network.UserIDs) error {
	w.set(func() { w.owned++ })
	return w.CreateNS(ctx, path)
}
func (w fakeNetwork) Owner(string) (*os.File, error) { return os.Open(os.DevNull) }
func (w fakeNetwork) RemoveNS(ctx context.Context, path string) error {
	if err := w.step(ctx, "netns-remove", path); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.netns, path)
	return nil
}

func (w fakeNetwork) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	if err := w.step(ctx, "cni", p.ID); err != nil {
		return network.Result{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cni[p.ID] = true
	return network.Result{IPs: []string{"10.0.0.2"}, Raw: json.RawMessage(`{}`), Conf: json.RawMessage(`{}`)}, nil
}

func (w fakeNetwork) Teardown(ctx context.Context, p network.Pod, _ network.Result) error {
	if err := w.step(ctx, "cni-del", p.ID); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cni, p.ID)
	return nil
}

func (w fakeNetwork) Pinned(context.Context) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var l []string
	for p := range w.netns {
		l = append(l, strings.TrimPrefix(p, "/netns/"))
	}
	return l, nil
}
func (w fakeNetwork) Status() error { return nil }

// fakeFiles are the directories of pods, of which only the existence counts here.
type fakeFiles struct{ *world }

func (w fakeFiles) MakeSandbox(s podfiles.Sandbox) error {
	return w.make(context.Background(), "files", s.ID)
}
func (w fakeFiles) Shared(string, bool) map[string]string { return map[string]string{} }
func (w fakeFiles) MakeVolume(id string, n int) (string, error) {
	return fmt.Sprint("/volumes/", id, "/", n), w.make(context.Background(), "files", id)
}
func (w fakeFiles) MakeImageVolume(id string, n int) (string, error) {
	return fmt.Sprintf("/volumes/%s/%d", id, n), w.make(context.Background(), "files", id)
}
func (w fakeFiles) Below(dir, path string) (string, error) { return filepath.Join(dir, path), nil }
func (w fakeFiles) MakeHostPath(string) error              { return nil }
func (w fakeFiles) IO(id string) string                    { return "/io/" + id }
func (w fakeFiles) Remove(id string) error {
	return absent(w.unmake(context.Background(), "files", id))
}
func (w fakeFiles) IDs() ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for o := range w.objects {
		if id, ok := strings.CutPrefix(o, "files/"); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

type fakeStdio struct {
	drained, closed chan struct{}
	remove          func()
	once            sync.Once
}

func (s *fakeStdio) FIFOs() (a, b, c string) { return "", "out", "err" }
func (s *fakeStdio) Started() error          { return nil }
func (s *fakeStdio) Run(ctx context.Context) error {
	select {
	case <-s.closed:
	case <-ctx.Done():
	}
	return nil
}
func (s *fakeStdio) Drained() <-chan struct{}     { return s.drained }
func (s *fakeStdio) Flush(context.Context) error  { return nil }
func (s *fakeStdio) Reopen(context.Context) error { return nil }
func (s *fakeStdio) Drain(ctx context.Context) error {
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (s *fakeStdio) Close() error  { s.once.Do(func() { close(s.closed) }); return nil }
func (s *fakeStdio) Remove() error { s.remove(); return s.Close() }

type fakeStdios struct {
	*world
	held bool // something holds the output open
}

func (f *fakeStdios) Create(o logs.Options) (Stdio, error) {
	f.set(func() { f.stdio[o.Dir] = true })
	return f.open(o.Dir), nil
}

func (f *fakeStdios) open(dir string) Stdio {
	s := &fakeStdio{
		drained: make(chan struct{}),
		closed:  make(chan struct{}),
		remove:  func() { f.set(func() { delete(f.stdio, dir) }) },
	}
	if !f.held {
		close(s.drained)
	}
	return s
}

func (f *fakeStdios) RemoveAll(dir string) error {
	f.set(func() { delete(f.stdio, dir) })
	return nil
}

func (f *fakeStdios) Open(o logs.Options) (s Stdio, err error) {
	err = errdefs.ErrNotFound
	f.set(func() {
		if f.stdio[o.Dir] {
			err = nil
		}
	})
	if err == nil {
		s = f.open(o.Dir)
	}
	return s, err
}

type fakeImages struct{ *world }

func (w fakeImages) Resolve(ref string) (Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ref == "absent" || ref == atRegistry && !w.pulled {
		return Image{}, errdefs.ErrNotFound
	}
	return Image{Checkpoint: ref == "checkpoint", ID: "sha256:1", Ref: ref, ChainID: "sha256:2", Snapshotter: "fake", Config: ocispec.ImageConfig{Cmd: []string{"x"}}}, nil
}

// atRegistry is an image that is not on the node before it is pulled.
const atRegistry = "remote"

func (w fakeImages) Pull(ctx context.Context, ref string) error {
	if err := w.step(ctx, "pull", ref); err != nil {
		return err
	}
	w.set(func() { w.pulled = w.pulled || ref == atRegistry })
	return nil
}

func (fakeImages) Name(string) string                                    { return "" }
func (fakeImages) Unpack(context.Context, Image) error                   { return nil }
func (fakeImages) Files(context.Context, Image) (a, b []byte, err error) { return nil, nil, nil }
func (fakeImages) CopyOut(context.Context, Image, string, string) error  { return nil }

// fakeStore is the disk. state.Change is opaque; here the order of commits and their failures
// matter, and the status that was committed last is read from the unit.
type fakeStore struct{ *world }

func (w fakeStore) Commit(changes ...state.Change) error {
	for _, ch := range changes {
		if err := w.step(context.Background(), "commit", ch.ID()); err != nil {
			return err
		}
	}
	return nil
}

// bubble is a controller in its world, inside a synctest bubble.
type bubble struct {
	*world
	*Controller
	t      *testing.T
	feed   *feed.Feed
	stdios *fakeStdios
	stop   func()
}

func start(t *testing.T, w *world) *bubble {
	t.Helper()
	return startWith(t, w, state.Loaded{})
}

// cutOff kills b while call is in a step of what it makes, and returns the berth that follows, once
// that one has compared everything with containerd and released what it does not keep. Without
// recorded, it finds the records from before the call: a backup was restored.
func cutOff(t *testing.T, w *world, b *bubble, step string, recorded bool, call func(ctx context.Context)) *bubble {
	t.Helper()
	loaded := b.records()
	w.set(func() { w.block[step] = make(chan struct{}) })
	go call(context.WithoutCancel(t.Context()))
	synctest.Wait()
	if recorded {
		loaded = b.records()
	}
	w.set(func() { // what b still tries has no effect
		for _, op := range []string{"commit", "delete-files", "delete-snapshot", "delete-sandbox", "delete-container", "delete-task", step} {
			w.fail[op] = errors.New("berth is dead")
		}
	})
	b.stop()
	w.set(func() { clear(w.block); clear(w.fail); clear(w.watched) })
	next := restart(t, w, loaded)
	time.Sleep(10 * time.Second) // a release lets settles go first
	synctest.Wait()
	return next
}

// restart is a berth that finds the records of an earlier one and has compared them with
// containerd.
func restart(t *testing.T, w *world, loaded state.Loaded) *bubble {
	t.Helper()
	b := startWith(t, w, loaded)
	if err := b.Relist(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return b
}

func startWith(t *testing.T, w *world, loaded state.Loaded) *bubble {
	t.Helper()
	b := &bubble{world: w, t: t, feed: feed.New(feed.Config{}), stdios: &fakeStdios{world: w}}
	b.Controller = New(Config{
		DefaultHandler: "runc", ResolvConf: "/nonexistent",
		Handlers: map[string]Handler{"runc": {Name: "runc", Type: "fake", HostProcess: true}, "vm": {Name: "vm", Type: "vm"},
			"imaged": {Name: "imaged", Type: "fake", HostProcess: true, SandboxImage: atRegistry},
			"shim":   {Name: "shim", Type: "shim", Sandboxer: "shim", HostProcess: true}, "vmm": {Name: "vmm", Type: "vmm", Sandboxer: "vmm"}},
		Host: spec.Host{MinOOMScoreAdj: -1000, Capabilities: []string{"CAP_CHOWN"}},
	}, Ports{
		Runtime: fakeRuntime{w}, Kernel: fakeKernel{w}, Cgroups: fakeCgroups{w}, Network: fakeNetwork{w}, Files: fakeFiles{w}, Stdios: b.stdios, Images: fakeImages{w},
		Store: fakeStore{w}, Feed: b.feed, Hooks: w.hooks, Devices: w.devices,
	})
	w.c = b.Controller
	b.Restore(loaded)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	b.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(b.stop)
	return b
}

func config(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "u"}, Hostname: "h",
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// records are the records of units, as a restart would load them.
func (b *bubble) records() state.Loaded {
	var l state.Loaded
	for _, u := range b.units.all() {
		if u.isSandbox() {
			l.Sandboxes = append(l.Sandboxes, state.SandboxRecord{Sandbox: *u.sandbox, Status: *u.now()})
		} else {
			l.Containers = append(l.Containers, state.ContainerRecord{Container: *u.container, Status: *u.now()})
		}
	}
	return l
}

func (b *bubble) pod(name, handler string) string {
	b.t.Helper()
	id, err := b.RunPodSandbox(b.t.Context(), config(name), handler)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func ctr(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "img"}, Command: []string{"x"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func (b *bubble) run(pod, name string) string {
	b.t.Helper()
	id, err := b.CreateContainer(b.t.Context(), pod, ctr(name))
	if err == nil {
		err = b.StartContainer(b.t.Context(), id)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func (b *bubble) expect(id string, s runtimeapi.ContainerState, code int32, reason string) {
	b.t.Helper()
	st, err := b.ContainerStatus(b.t.Context(), id, false)
	if err != nil {
		b.t.Fatal(err)
	}
	if got := st.GetStatus(); got.GetState() != s || got.GetExitCode() != code || got.GetReason() != reason {
		b.t.Errorf("%s is %s %d %s, want %s %d %s", id, got.GetState(), got.GetExitCode(), got.GetReason(), s, code, reason)
	}
}

// cgroupOf is the cgroup of a container's process.
func (w *world) cgroupOf(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint("cg", w.tasks[id].pid)
}

func (w *world) isHung(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung[id]
}

// newName is a name that no container has yet.
func (w *world) newName() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names++
	return fmt.Sprint("n", w.names)
}

// count is how often an operation was done.
func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, d := range w.did {
		if d == what {
			n++
		}
	}
	return n
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}
