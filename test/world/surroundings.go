// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/host/logs"
	"berth/internal/host/network"
	"berth/internal/host/pins"
	"berth/internal/host/podfiles"
)

// netns stands for pins.Networks: it keeps the world's network namespaces.
type netns struct {
	w *World
	l *Life
}

func (n netns) PathFor(id string) string { return "/netns/" + id }

func (n netns) Create(ctx context.Context, path string) error {
	return n.CreateOwned(ctx, path, pins.UserIDs{})
}

func (n netns) CreateOwned(ctx context.Context, path string, ids pins.UserIDs) error {
	return n.w.do(ctx, n.l, "netns", path, func() error { n.w.netns[path] = ids; return nil })
}

func (n netns) Owner(string) (*os.File, error) { return os.Open(os.DevNull) }

func (n netns) Remove(ctx context.Context, path string) error {
	return n.w.do(ctx, n.l, "netns-remove", path, func() error {
		delete(n.w.netns, path)
		delete(n.w.sysctls, path)
		return nil
	})
}

func (n netns) RemoveAdopted(ctx context.Context, path string) error { return n.Remove(ctx, path) }

func (n netns) Pinned(ctx context.Context) (ids []string, err error) {
	err = n.w.read(ctx, n.l, "netns-list", "", func() error {
		for _, p := range slices.Sorted(maps.Keys(n.w.netns)) {
			ids = append(ids, strings.TrimPrefix(p, "/netns/"))
		}
		return nil
	})
	return ids, err
}

// plumbing stands for network.Network: it keeps the world's CNI results.
type plumbing struct {
	w *World
	l *Life
}

func (n plumbing) Status() error { return nil }

// Restore does nothing: there is no firewall in the world.
func (n plumbing) Restore(network.Pod, network.Result) {}

func (n plumbing) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	err := n.w.do(ctx, n.l, "cni-add", p.ID, func() error {
		n.w.cni[p.ID] = true
		delete(n.w.sysctls, p.NetNS) // as plug-ins do
		return nil
	})
	if err != nil {
		return network.Result{}, err
	}
	return network.Result{
		IPs:  []string{"10.0.0.2"},
		Raw:  json.RawMessage(`{}`),
		Conf: json.RawMessage(`{}`),
	}, nil
}

func (n plumbing) SetSysctls(p network.Pod, _ network.Result, values map[string]string) error {
	return n.w.do(context.Background(), n.l, "sysctls", p.ID, func() error {
		n.w.sysctls[p.NetNS] = values
		return nil
	})
}

// Sysctls are the sysctls set in a network namespace.
func (w *World) Sysctls(netns string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sysctls[netns]
}

func (n plumbing) Teardown(ctx context.Context, p network.Pod, _ network.Result) error {
	return n.w.do(ctx, n.l, "cni-del", p.ID, func() error { delete(n.w.cni, p.ID); return nil })
}

// OwnerOf is the user namespace that owns a network namespace; zero: the host's.
func (w *World) OwnerOf(netns string) pins.UserIDs {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.netns[netns]
}

// spaces stands for package pins: it keeps the IDs that have pinned namespaces.
type spaces struct {
	w *World
	l *Life
}

func (s spaces) IPC(id string) string { return "/pins/" + id + "/ipc" }
func (s spaces) UTS(id string) string { return "/pins/" + id + "/uts" }

func (s spaces) Make(r pins.Request) error {
	return s.w.do(context.Background(), s.l, "pins", r.ID, func() error { s.w.pins[r.ID] = true; return nil })
}

// Check takes its turn: without one, a stop that asks for the pins goes on in the same instant as
// the lane that it has woken, in no order.
func (s spaces) Check(id string) error {
	return s.w.read(context.Background(), s.l, "pins-check", id, func() error {
		if !s.w.pins[id] {
			return fmt.Errorf("pins of %s: %w", Short(id), errdefs.ErrNotFound)
		}
		return nil
	})
}

func (s spaces) Remove(id string) error {
	return s.w.do(context.Background(), s.l, "pins-remove", id, func() error { delete(s.w.pins, id); return nil })
}

func (s spaces) IDs() (ids []string, err error) {
	err = s.w.read(context.Background(), s.l, "pins-list", "", func() error {
		ids = slices.Sorted(maps.Keys(s.w.pins))
		return nil
	})
	return ids, err
}

// Pinned reports whether the namespaces of a pod are pinned.
func (w *World) Pinned(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pins[id]
}

// LosePins takes the pinned namespaces of all pods away, as a reboot does.
func (w *World) LosePins() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("*** the pins are lost", "")
	clear(w.pins)
}

// files stands for package podfiles: it keeps the IDs that have files.
type files struct {
	w *World
	l *Life
}

func (f files) make(id string) error {
	return f.w.do(context.Background(), f.l, "files", id, func() error { f.w.files[id] = true; return nil })
}

func (f files) MakeSandbox(s podfiles.Sandbox) error { return f.make(s.ID) }

// SetHosts needs the files.
func (f files) SetHosts(id string, hosts []byte) error {
	return f.w.do(context.Background(), f.l, "hosts", id, func() error {
		if !f.w.files[id] {
			return fmt.Errorf("hosts of %s: %w", Short(id), errdefs.ErrNotFound)
		}
		f.w.hosts[id] = string(hosts)
		return nil
	})
}

// Hosts is the /etc/hosts of a pod.
func (w *World) Hosts(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hosts[id]
}

func (f files) MakeVolume(id string, n int) (string, error) {
	return fmt.Sprint("/volumes/", id, "/", n), f.make(id)
}

func (f files) MakeCheckpoint(id string) (string, error) { return f.Checkpoint(id), f.make(id) }
func (f files) Checkpoint(id string) string              { return "/restores/" + id }

func (f files) RemoveCheckpoint(string) error { return nil }

func (f files) Shared(string, bool) map[string]string { return nil }
func (f files) MakeImageVolume(id string, n int) (string, error) {
	return fmt.Sprint("/images/", id, "/", n), f.make(id)
}

func (f files) MakeRootfs(id string, _ int) (string, error) {
	return fmt.Sprint("/rootfs/", id, "/0"), f.make(id)
}

func (f files) Below(dir, path string) (string, error) { return dir + "/" + path, nil }
func (f files) MakeHostPath(ctx context.Context, path string) error {
	return f.w.do(ctx, f.l, "host-path", path, func() error { return nil })
}

func (f files) IO(id string) string { return "/io/" + id }

func (f files) Remove(id string) error {
	return f.w.do(context.Background(), f.l, "files-remove", id, func() error { delete(f.w.files, id); return nil })
}

func (f files) RemoveAdopted(id string, _, _ []string) error {
	return f.w.do(context.Background(), f.l, "adopted-remove", id, func() error { delete(f.w.adopted, id); return nil })
}

func (f files) IDs() (ids []string, err error) {
	err = f.w.read(context.Background(), f.l, "files-list", "", func() error {
		ids = slices.Sorted(maps.Keys(f.w.files))
		return nil
	})
	return ids, err
}

// outputs stands for the stdio of containers: they write nothing.
type outputs struct {
	w *World
	l *Life
}

// HoldOutput keeps the output of all containers open that are created from now on.
func (w *World) HoldOutput() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.openOutput = true
}

type output struct {
	of      outputs
	dir     string
	open    bool // something holds it open
	drained chan struct{}
	closed  chan struct{}
	once    sync.Once
	// started is closed once it is known whether the shim has its ends. Nothing is read before that,
	// and so nothing has ended.
	started chan struct{}
	begin   sync.Once
}

func (o outputs) Create(l logs.Options) (pod.Stdio, error) {
	var out *output
	err := o.w.do(context.Background(), o.l, "stdio", ofIO(l.Dir), func() error {
		o.w.stdio[l.Dir] = true
		out = o.open(l.Dir)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (o outputs) Open(l logs.Options) (pod.Stdio, error) {
	var out *output
	err := o.w.read(context.Background(), o.l, "stdio-open", ofIO(l.Dir), func() error {
		if !o.w.stdio[l.Dir] {
			return errdefs.ErrNotFound
		}
		out = o.open(l.Dir)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.begun()
	return out, nil
}

func (o outputs) open(dir string) *output {
	return &output{
		of:      o,
		dir:     dir,
		open:    o.w.openOutput,
		drained: make(chan struct{}),
		closed:  make(chan struct{}),
		started: make(chan struct{}),
	}
}

func (o outputs) RemoveAll(dir string) error {
	return o.w.do(context.Background(), o.l, "stdio-remove", ofIO(dir), func() error {
		delete(o.w.stdio, dir)
		return nil
	})
}

// ofIO is the ID of the container whose stdio is in a directory.
func ofIO(dir string) string { return strings.TrimPrefix(dir, "/io/") }

func (o *output) FIFOs() (stdin, stdout, stderr string) { return "", "out", "err" }
func (o *output) Drained() <-chan struct{}              { return o.drained }
func (o *output) Close() error                          { o.once.Do(func() { close(o.closed) }); return nil }
func (o *output) Remove() error                         { _ = o.Close(); return o.of.RemoveAll(o.dir) }
func (o *output) Reopen(ctx context.Context) error      { return o.ask(ctx, "stdio-reopen") }

// ask passes the door of a call that changes nothing in the world.
func (o *output) ask(ctx context.Context, op string) error {
	return o.of.w.read(ctx, o.of.l, op, ofIO(o.dir), func() error { return nil })
}

func (o *output) Flush(ctx context.Context) error {
	if err := o.ask(ctx, "stdio-flush"); err != nil {
		return err
	}
	return until(ctx, o.started)
}

func (o *output) Drain(ctx context.Context) error {
	if err := o.ask(ctx, "stdio-drain"); err != nil {
		return err
	}
	return until(ctx, o.drained)
}

// Run reads until the output is closed. An output that is not held open has ended once the shim has
// its ends.
func (o *output) Run(ctx context.Context) error {
	if err := o.ask(ctx, "stdio-run"); err != nil {
		return err
	}
	select {
	case <-o.started:
		if !o.open {
			close(o.drained)
		}
	case <-o.closed:
	case <-ctx.Done():
		return nil
	}
	_ = until(ctx, o.closed)
	return nil
}

func (o *output) Started() error {
	defer o.begun() // even if it fails: the shim has its ends, or never will
	return o.ask(context.Background(), "stdio-started")
}

func (o *output) begun() { o.begin.Do(func() { close(o.started) }) }

func until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Images by their references. Any other one is on the node as well.
const (
	Image      = "registry.example/app:1"
	Absent     = "absent"     // an image that does not exist
	Remote     = "remote"     // is at its registry until it is pulled
	Checkpoint = "checkpoint" // is not an image to run
)

// Archives of checkpoints by their paths. Others do not exist.
const (
	Archive         = "/checkpoints/c.tar"      // of a container of [Image]
	ArchiveOfRemote = "/checkpoints/remote.tar" // of a container of [Remote]

	received = "/received.tar" // the one that [Checkpoint] holds, until it is given back
)

// archives stands for package checkpoint.
type archives struct {
	w *World
	l *Life
}

func (a archives) Receive(ctx context.Context, from io.Reader) (string, func(), error) {
	done := func() {
		a.w.mu.Lock()
		defer a.w.mu.Unlock()
		a.w.received--
	}
	if err := a.w.do(ctx, a.l, "receive", Checkpoint, func() error {
		a.w.received++
		_, err := io.Copy(io.Discard, from)
		return err
	}); err != nil {
		return "", nil, err
	}
	return received, done, nil
}

func (a archives) Read(_ context.Context, archive string) (pod.Checkpoint, error) {
	switch archive {
	case Archive, received:
		return pod.Checkpoint{Image: "app:old", ImageRef: Image}, nil
	case ArchiveOfRemote:
		return pod.Checkpoint{Image: Remote}, nil
	}
	return pod.Checkpoint{}, fmt.Errorf("checkpoint %s: %w", archive, errdefs.ErrNotFound)
}

// Received is how many archives were received and not given back.
func (w *World) Received() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.received
}

func (a archives) Unpack(ctx context.Context, archive, dir string, _ *specs.Spec) error {
	if archive == received && a.w.Received() == 0 {
		return fmt.Errorf("it was given back: %w", errdefs.ErrNotFound)
	}
	return a.w.do(ctx, a.l, "unpack", dir, func() error { return nil })
}

// library stands for the images.
type library struct {
	w *World
	l *Life
}

func (i library) Resolve(ref string) (pod.Image, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	if ref == Absent || ref == Remote && !i.w.remote {
		return pod.Image{}, errdefs.ErrNotFound
	}
	return pod.Image{
		ID:          "sha256:1",
		Ref:         ref,
		ChainID:     "sha256:2",
		Snapshotter: snapshotter,
		Config:      ocispec.ImageConfig{Cmd: []string{"/app"}},
		Checkpoint:  ref == Checkpoint,
	}, nil
}

func (library) Name(string, string) string { return Image }

func (i library) Pull(ctx context.Context, ref string) (pod.Image, error) {
	if err := i.w.do(ctx, i.l, "pull", ref, func() error { i.w.remote = i.w.remote || ref == Remote; return nil }); err != nil {
		return pod.Image{}, err
	}
	return i.Resolve(ref)
}
func (i library) PullFor(ctx context.Context, _ *runtimeapi.PodSandboxMetadata, ref string) (pod.Image, error) {
	return i.Pull(ctx, ref)
}
func (library) Unpack(context.Context, pod.Image) error { return nil }
func (library) Files(context.Context, pod.Image) (passwd, group []byte, err error) {
	return nil, nil, nil
}

func (i library) Checkpoint(_ context.Context, img pod.Image) (io.ReadCloser, error) {
	if !img.Checkpoint {
		return nil, errdefs.ErrInvalidArgument
	}
	return io.NopCloser(strings.NewReader("archive")), nil
}

func (library) CopyOut(context.Context, pod.Image, map[string]string) error { return nil }
