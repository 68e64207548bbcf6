// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/images/image"
	"berth/internal/serve/checkpoint"
	"berth/internal/serve/cri"
	"berth/internal/serve/stats"
	"berth/internal/serve/stream"
	"berth/test/sim"
	"berth/test/world"
)

// node is a whole berth between fakes, with one sandbox and two containers: one that was created
// and one that runs. It belongs into a synctest bubble.
type node struct {
	t       *testing.T
	berth   *sim.Berth
	images  *cri.Image
	pod     string
	created string
	runs    string
}

func newNode(t *testing.T) *node {
	t.Helper()
	w := world.New(1)
	b, err := sim.Boot(t.Context(), w, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	streams, err := stream.New(stream.Config{
		Dir:       t.TempDir(),
		Target:    b.Core.Pods.Target,
		Processes: noProcesses{},
		Stdio:     func(string) (stream.Stdio, error) { return nil, errdefs.ErrUnavailable },
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Streams = execs{stream.NewServer(stream.ServerConfig{}, streams), streams}
	b.Stats = stats.New(stats.Config{Pods: b.Core.Pods, Cgroups: t.TempDir()})
	b.Health = healthy{}
	b.Checkpoints = checkpoint.New(checkpoint.Config{Dir: t.TempDir(), Pods: b.Core.Pods, Runtime: noCRIU{}})
	b.Restorer = checkpoint.NewRestorer(checkpoint.RestorerConfig{Dir: t.TempDir(), Pods: b.Core.Pods, ImageID: func(ref string) string { return ref }})
	store := &imageStore{names: map[string]image.Stored{}}
	store.put("registry.example/app:1")
	service := image.New(store, image.Config{Logger: slog.New(slog.DiscardHandler)})
	if err := service.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	profiles := image.OpenProfiles(image.ProfileConfig{
		Dir:      t.TempDir(),
		MaxBytes: 1 << 20,
		Registry: func(string, image.Credentials) image.Registry { return noRegistry{} },
		Timeout:  time.Minute,
		Logger:   slog.New(slog.DiscardHandler),
	})
	n := &node{t: t, berth: b, images: &cri.Image{Images: service, Profiles: knownProfiles{profiles}, Handlers: map[string]string{"runc": ""}}}

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = service.Run(ctx) })
	wg.Go(func() { _ = streams.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		w.End()
	})
	n.make()
	return n
}

func (n *node) make() {
	n.t.Helper()
	ctx := n.t.Context()
	cfg := run(func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "pod" })
	cfg.Config.Labels = map[string]string{"k": "v"}
	pod, err := n.berth.RunPodSandbox(ctx, cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.pod = pod.GetPodSandboxId()
	for name, id := range map[string]*string{"created": &n.created, "runs": &n.runs} {
		req := create(func(c *runtimeapi.ContainerConfig) {
			c.Metadata.Name, c.Labels = name, map[string]string{"name": name}
		})
		req.PodSandboxId = n.pod
		made, err := n.berth.CreateContainer(ctx, req)
		if err != nil {
			n.t.Fatal(err)
		}
		*id = made.GetContainerId()
	}
	if _, err := n.berth.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: n.runs}); err != nil {
		n.t.Fatal(err)
	}
}

// name replaces what stands for the node's own units in the fields for IDs: pod, created and runs.
func (n *node) name(m protoreflect.Message) {
	ids := map[string]string{"pod": n.pod, "created": n.created, "runs": n.runs}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() || f.IsMap():
		case f.Message() != nil:
			n.name(v.Message())
		case f.Kind() == protoreflect.StringKind && strings.HasSuffix(string(f.Name()), "_id"):
			if id := ids[v.String()]; id != "" {
				m.Set(f, protoreflect.ValueOfString(id))
			}
		}
		return true
	})
}

// call makes one call with a request in wire format, as the gRPC server does. A request that is not
// one is reported as such, and not sent.
func (n *node) call(ctx context.Context, method string, wire []byte) (sent bool, err error) {
	decode := func(v any) error {
		m := v.(proto.Message)
		if err := proto.Unmarshal(wire, m); err != nil {
			return err
		}
		n.name(m.ProtoReflect())
		sent = true
		return nil
	}
	for _, s := range []struct {
		desc   *grpc.ServiceDesc
		server any
	}{
		{&runtimeapi.RuntimeService_ServiceDesc, n.berth.Runtime},
		{cri.ImageService(), n.images},
	} {
		for _, m := range s.desc.Methods {
			if m.MethodName == method {
				_, err := m.Handler(s.server, ctx, decode, nil)
				return sent, err
			}
		}
		for _, m := range s.desc.Streams {
			if m.StreamName == method {
				return sent, m.Handler(s.server, &serverStream{ctx: ctx, decode: decode})
			}
		}
	}
	return false, fmt.Errorf("method %s does not exist", method)
}

// serverStream is a client of a stream that reads everything.
type serverStream struct {
	ctx    context.Context
	decode func(any) error
	done   bool
}

func (s *serverStream) Context() context.Context     { return s.ctx }
func (s *serverStream) SetHeader(metadata.MD) error  { return nil }
func (s *serverStream) SendHeader(metadata.MD) error { return nil }
func (s *serverStream) SetTrailer(metadata.MD)       {}
func (s *serverStream) SendMsg(any) error            { return s.ctx.Err() }
func (s *serverStream) RecvMsg(m any) error {
	if s.done {
		return io.EOF
	}
	s.done = true
	return s.decode(m)
}

// execs is what daemon makes of package stream.
type execs struct {
	*stream.Server
	service *stream.Service
}

func (e execs) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stream.Result, error) {
	return e.service.ExecSync(ctx, id, cmd, timeout)
}

// noCRIU is a node on which nothing can be checkpointed.
type noCRIU struct{ checkpoint.Runtime }

func (noCRIU) Spec(context.Context, string) (*specs.Spec, error) { return &specs.Spec{}, nil }
func (noCRIU) PauseTask(context.Context, string) (bool, error) {
	return false, errdefs.ErrFailedPrecondition
}

// healthy is a node on which all is well.
type healthy struct{}

func (healthy) Runtime() error        { return nil }
func (healthy) Network() error        { return nil }
func (healthy) Info() map[string]any  { return map[string]any{"k": "v"} }
func (healthy) SystemdCgroup() bool   { return false }
func (healthy) PulledProfiles() bool  { return true }
func (healthy) WritableCgroups() bool { return true }
func (healthy) SetPodCIDR(string)     {}
func (healthy) Handlers() []*runtimeapi.RuntimeHandler {
	return []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "runc"}}
}

// noProcesses is a containerd that makes no exec processes.
type noProcesses struct{}

func (noProcesses) Spec(context.Context, string) (*specs.Spec, error) {
	return nil, errdefs.ErrUnavailable
}
func (noProcesses) CreateExec(context.Context, stream.Key, stream.Request) error {
	return errdefs.ErrUnavailable
}
func (noProcesses) StartExec(context.Context, stream.Key) error { return errdefs.ErrNotFound }
func (noProcesses) WaitExec(context.Context, stream.Key) (uint32, error) {
	return 0, errdefs.ErrNotFound
}
func (noProcesses) KillExec(context.Context, stream.Key) error       { return errdefs.ErrNotFound }
func (noProcesses) DeleteExec(context.Context, stream.Key) error     { return errdefs.ErrNotFound }
func (noProcesses) CloseExecStdin(context.Context, stream.Key) error { return errdefs.ErrNotFound }
func (noProcesses) ResizeExec(context.Context, stream.Key, uint16, uint16) error {
	return errdefs.ErrNotFound
}

// knownProfiles are profiles without a history.
type knownProfiles struct{ *image.Profiles }

func (p knownProfiles) Remove(_ context.Context, digest string) error {
	_, err := p.Profiles.Remove(digest)
	return err
}

// noRegistry is a registry that is away.
type noRegistry struct{ image.Registry }

func (noRegistry) Manifest(context.Context, string) ([]byte, error) {
	return nil, errdefs.ErrUnavailable
}

// imageStore is containerd's image store. Every registry has what is pulled from it.
type imageStore struct {
	mu    sync.Mutex
	names map[string]image.Stored
}

func (s *imageStore) put(name string) image.Stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := digest.FromString("configuration").String()
	n, _ := image.NewName(name, ocispec.Descriptor{Digest: digest.FromString("manifest")}, id)
	st := image.Stored{Name: n, ID: id, ChainID: "sha256:89ab", Size: 1}
	for _, n := range st.NamesGiven() {
		named := st
		named.Name = n
		s.names[n.String()] = named
	}
	return st
}

func (s *imageStore) List(context.Context) ([]image.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []image.Stored
	for _, st := range s.names {
		all = append(all, st)
	}
	return all, nil
}

func (s *imageStore) Get(_ context.Context, name string) (image.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.names[name]
	if !ok {
		return image.Stored{}, errdefs.ErrNotFound
	}
	return st, nil
}

func (s *imageStore) Pull(_ context.Context, ref string, _ image.Credentials, _ string, _ image.Sink) (image.Stored, error) {
	return s.put(ref), nil
}

func (s *imageStore) Import(context.Context, string, string, func(done, total int64)) ([]image.Stored, []string, error) {
	return nil, nil, errors.New("nothing is imported here")
}
func (s *imageStore) Unpack(context.Context, image.Name, string) error { return nil }
func (s *imageStore) Checkpoint(context.Context, string) (io.ReadCloser, error) {
	return nil, errdefs.ErrNotFound
}

func (s *imageStore) Delete(_ context.Context, n image.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, n.String())
	return nil
}

func (s *imageStore) ReadFiles(context.Context, image.Root, int64, ...string) ([][]byte, error) {
	return nil, errdefs.ErrNotFound
}
func (s *imageStore) Fetched(context.Context, []image.Blob) (map[string]int64, error) {
	return nil, nil
}
func (s *imageStore) CopyOut(context.Context, image.Root, map[string]string) error { return nil }
func (s *imageStore) Usage(context.Context) (image.Usage, error)                   { return image.Usage{}, nil }
func (s *imageStore) Contents(context.Context) (image.Contents, error)             { return image.Contents{}, nil }
func (s *imageStore) Snapshotter() string                                          { return "fake" }
func (s *imageStore) DropKept(context.Context) error                               { return nil }
func (*imageStore) Registry(string) image.Registry                                 { return nil }
