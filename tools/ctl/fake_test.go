// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"berth/internal/base/event"
	"berth/internal/history/bundle"
	"berth/internal/history/recorder"
	"berth/internal/images/image"
	"berth/internal/serve/cri"
)

// fake is a CRI service in memory. A container ends as soon as it is started, with the code that
// ends has for its name, or else runs until it is stopped.
type fake struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	runtime string // its name; "" for berth
	mu      sync.Mutex
	pods    []*runtimeapi.PodSandboxStatus
	cts     []*runtimeapi.ContainerStatus
	podOf   map[string]string
	ends    map[string]int32 // by container name
	images  map[string]*runtimeapi.Image
	created []*runtimeapi.ContainerConfig
	calls   []string
	events  []*runtimeapi.ContainerEventResponse // GetContainerEvents sends them and ends

	execURL     string           // what Exec answers with instead
	streams     streaming.Server // makes the URLs of Exec, Attach and PortForward
	asked       string           // the verbose status of containers, for attach
	stats       []*runtimeapi.ContainerStats
	refuseRun   error                 // what RunPodSandbox returns
	info        map[string]string     // what Status tells beside the warnings
	away        error                 // what ListPodSandbox returns
	refuseStart error                 // what StartContainer returns
	hold        chan struct{}         // StopContainer, RemoveContainer and RemovePodSandbox wait until it is closed
	lanes       []map[string]any      // what Lanes returns
	ended       map[string]event.Exit // what Ended returns
	transfers   []image.Transfer      // what Transfers returns
	plain       bool                  // the service lacks Images
	reason      cri.Reason            // what Why returns
	records     []recorder.Record
}

// serveFake serves f on a socket until the test ends, and returns its address.
func serveFake(t *testing.T, f *fake) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, f)
	runtimeapi.RegisterImageServiceServer(s, f)
	cri.RegisterAdmin(s, f)
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // the test was over first
			t.Error(err)
		}
	})
	return path
}

func newFake() *fake {
	return &fake{
		podOf:  map[string]string{},
		ends:   map[string]int32{},
		images: map[string]*runtimeapi.Image{},
		lanes: []map[string]any{{
			"id":      "ct1",
			"state":   "backing off",
			"since":   "2026-01-02T03:04:05Z",
			"until":   "2026-01-02T03:04:09Z",
			"tries":   3,
			"waiting": 1,
			"error":   "unmount: busy",
			"head":    "release",
		}},
	}
}

func (f *fake) call(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// wait waits for hold, without the lock.
func (f *fake) wait(ctx context.Context) error {
	if f.hold == nil {
		return nil
	}
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-f.hold:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (f *fake) addPod(id, namespace, name string) {
	f.pods = append(f.pods, &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace}, CreatedAt: time.Now().Add(-3*time.Minute - time.Second).UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.88.0.9"},
	})
}

func (f *fake) addContainer(id, pod, name string, attempt uint32, state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, State: state,
		Image: &runtimeapi.ImageSpec{Image: "busybox:1"}, CreatedAt: time.Now().Add(-2*time.Hour - time.Second).UnixNano(),
	}
	f.cts, f.podOf[id] = append(f.cts, st), pod
	return st
}

func (f *fake) pod(id string) (*runtimeapi.PodSandboxStatus, error) {
	for _, p := range f.pods {
		if p.Id == id {
			return p, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s is not there", id)
}

func (f *fake) ct(id string) (*runtimeapi.ContainerStatus, error) {
	for _, c := range f.cts {
		if c.Id == id {
			return c, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "container %s is not there", id)
}

func (f *fake) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuseRun != nil {
		return nil, f.refuseRun
	}
	id := fmt.Sprintf("pod%d", len(f.pods))
	f.addPod(id, r.GetConfig().GetMetadata().GetNamespace(), r.GetConfig().GetMetadata().GetName())
	f.pods[len(f.pods)-1].Metadata = r.GetConfig().GetMetadata()
	f.call("run %s %s", id, r.GetRuntimeHandler())
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (f *fake) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("stop-pod %s", r.GetPodSandboxId())
	p, err := f.pod(r.GetPodSandboxId())
	if err == nil {
		p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return &runtimeapi.StopPodSandboxResponse{}, err
}

func (f *fake) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("remove-pod %s", r.GetPodSandboxId())
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.pods = slices.DeleteFunc(f.pods, func(p *runtimeapi.PodSandboxStatus) bool { return p.Id == r.GetPodSandboxId() })
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// labelled reports whether labels have everything that a filter wants.
func labelled(labels, filter map[string]string) bool {
	for k, v := range filter {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (f *fake) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return nil, f.away
	}
	resp := &runtimeapi.ListPodSandboxResponse{}
	for _, p := range f.pods {
		if !labelled(p.Labels, r.GetFilter().GetLabelSelector()) {
			continue
		}
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{Id: p.Id, Metadata: p.Metadata, State: p.State, CreatedAt: p.CreatedAt, RuntimeHandler: "runc"})
	}
	return resp, nil
}

func (f *fake) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.pod(r.GetPodSandboxId())
	return &runtimeapi.PodSandboxStatusResponse{Status: p}, err
}

func (f *fake) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := fmt.Sprintf("ct%d", len(f.cts))
	f.created = append(f.created, r.GetConfig())
	st := f.addContainer(id, r.GetPodSandboxId(), r.GetConfig().GetMetadata().GetName(), 0, runtimeapi.ContainerState_CONTAINER_CREATED)
	st.LogPath, st.Annotations = "/logs/"+r.GetConfig().GetLogPath(), r.GetConfig().GetAnnotations()
	f.call("create %s", st.Metadata.Name)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func (f *fake) StartContainer(_ context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.ct(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if f.refuseStart != nil {
		return nil, f.refuseStart
	}
	f.call("start %s", c.Metadata.Name)
	c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
	if code, ok := f.ends[c.Metadata.Name]; ok {
		c.State, c.ExitCode, c.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, code, "Error"
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

func (f *fake) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("stop %s %d", r.GetContainerId(), r.GetTimeout())
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	c, err := f.ct(r.GetContainerId())
	if err == nil {
		c.State = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return &runtimeapi.StopContainerResponse{}, err
}

func (f *fake) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("remove %s", r.GetContainerId())
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f *fake) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.ct(r.GetContainerId())
	c, _ = proto.Clone(c).(*runtimeapi.ContainerStatus)
	return &runtimeapi.ContainerStatusResponse{Status: c, Info: map[string]string{"info": cmp.Or(f.asked, `{"pid": 7}`)}}, err
}

func (f *fake) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	for _, c := range f.cts {
		if !labelled(c.Labels, r.GetFilter().GetLabelSelector()) {
			continue
		}
		if s := r.GetFilter().GetState(); s != nil && s.State != c.State || !strings.HasPrefix(f.podOf[c.Id], r.GetFilter().GetPodSandboxId()) || !strings.HasPrefix(c.Id, r.GetFilter().GetId()) {
			continue
		}
		resp.Containers = append(resp.Containers, &runtimeapi.Container{
			Id: c.Id, PodSandboxId: f.podOf[c.Id], Metadata: c.Metadata, Image: c.Image, State: c.State, CreatedAt: c.CreatedAt, Annotations: c.Annotations,
		})
	}
	return resp, nil
}

func (f *fake) GetContainerEvents(_ *runtimeapi.GetEventsRequest, s grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	for _, e := range f.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: cmp.Or(f.runtime, "berth"), RuntimeVersion: "v9", RuntimeApiVersion: "v1"}, nil
}

func (f *fake) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	info := map[string]string{"warnings": `["runc is old"]`}
	maps.Copy(info, f.info)
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Message: "no CNI configuration"},
		}},
		Info: info,
	}, nil
}

func (f *fake) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{
		{Id: "sha256:0123456789abcdef", RepoTags: []string{"busybox:1"}, Size: 5 << 20}, {Id: "sha256:fedcba", RepoDigests: []string{"x@sha256:1"}},
	}}, nil
}

func (f *fake) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: f.images[r.GetImage().GetImage()]}, nil
}

func (f *fake) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("pull %s %s%s", r.GetImage().GetImage(), r.GetAuth().GetUsername(), r.GetSandboxConfig().GetMetadata().GetNamespace())
	if strings.HasPrefix(r.GetImage().GetImage(), "nowhere/") {
		return nil, status.Error(codes.Unavailable, "registry nowhere does not answer")
	}
	img := &runtimeapi.Image{Id: "sha256:pulled"}
	f.images[r.GetImage().GetImage()], f.images[img.GetId()] = img, img
	return &runtimeapi.PullImageResponse{ImageRef: "sha256:pulled"}, nil
}

func (f *fake) RemoveImage(context.Context, *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (f *fake) Import(_ context.Context, path, ref string) (image.Imported, error) {
	return image.Imported{
		Names:   []string{filepath.Base(path) + " as " + ref},
		LeftOut: []string{"image other:1: it is for another node"},
	}, nil
}

func (f *fake) VerifyImage(context.Context, string, bool) (any, error) { return nil, nil }

func (f *fake) PullProgress(context.Context, string) (any, error) { return nil, nil }

func (f *fake) ImportProgress(context.Context, string) (any, error) { return nil, nil }

func (f *fake) Transfers(context.Context) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("transfers")
	return f.transfers, nil
}

func (f *fake) Images(context.Context) (any, error) {
	if f.plain {
		return nil, status.Error(codes.Unimplemented, "unknown method Images")
	}
	return []image.Listed{
		{
			ID:       "sha256:0123456789abcdef",
			RepoTags: []string{"busybox:1"},
			Size:     5 << 20,
			Disk:     9 << 20,
			Frees:    3 << 20,
			Created:  time.Now().Add(-3*time.Hour - time.Second),
			Pinned:   true,
			Pins:     []image.Pin{image.PinConfig, image.PinArchive},
			Users:    []string{"a/b/c", "d/e/f", "g/h/i"},
		},
		{ID: "sha256:fedcba", RepoDigests: []string{"x@sha256:1"}, Artifact: "application/vnd.model"},
	}, nil
}

func (f *fake) PruneImages(_ context.Context, dryRun bool, olderThan time.Duration) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("prune %v %s", dryRun, olderThan)
	return image.Pruned{
		Images: []image.PrunedImage{{ID: "sha256:1", Names: []string{"old:1"}, Bytes: 7 << 20}, {ID: "sha256:2", Names: []string{"stuck:1"}, Error: "the disk is read-only"}},
		Bytes:  7 << 20,
		Used:   2,
		Pinned: 1,
	}, nil
}

func (f *fake) Disk(context.Context) (any, error) {
	return cri.Disk{
		Path:   "/var/lib/berth",
		Total:  50 << 30,
		Free:   20 << 30,
		Shares: []image.Share{{What: "images", Count: 3, Bytes: 70 << 20, Reclaimable: 40 << 20}, {What: "logs", Bytes: 1 << 20, Unknown: 1}},
	}, nil
}

func (f *fake) Why(_ context.Context, of string) (any, error) {
	if of != "c1" {
		return nil, fmt.Errorf("timeline of %q: %w", of, errdefs.ErrNotFound)
	}
	return f.reason, nil
}

func (f *fake) Timeline(_ context.Context, q recorder.Query) (any, error) {
	if f.events != nil {
		return nil, status.Error(codes.Unimplemented, "another runtime")
	}
	if q.Of == "" && q.After == 0 {
		return map[string]any{"last": 2, "entries": []map[string]any{
			{"number": 1, "at": "2026-01-02T03:04:05Z", "kind": "ExitReported", "what": "exit reported"},
			{"number": 2, "at": "2026-01-02T03:04:05Z", "kind": "ExitSettled", "id": "bbc333", "name": "default/db/sql", "what": "exit settled", "detail": "code=42"},
		}}, nil
	}
	return map[string]any{"id": q.Of, "entries": []map[string]any{{"at": "2026-01-02T03:04:05Z", "what": "exit settled", "detail": "code=42", "error": "late"}}}, nil
}

func (f *fake) Records(_ context.Context, after uint64, since time.Time) (recorder.Batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("records after %d", after)
	return recorder.Batch{Records: f.records[min(after, uint64(len(f.records))):], Last: uint64(len(f.records))}, nil
}

func (f *fake) Bundle(context.Context) (bundle.Node, error) {
	return bundle.Node{
		Version: "test",
		Exact:   true,
		Records: []bundle.Record{{State: "RUNNING", Image: "registry.example/app:1"}},
	}, nil
}

func (f *fake) Ended(context.Context) (map[string]event.Exit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runtime != "" { // another runtime
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	return f.ended, nil
}

func (f *fake) Lanes(context.Context) (any, error) {
	if f.runtime != "" { // another runtime
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	return f.lanes, nil
}
