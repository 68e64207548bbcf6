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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	berthv1 "berth/api/berth/v1"
	"berth/internal/serve/nodeapi"
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
	sandbox *runtimeapi.PodSandboxConfig // the last that was asked for
	calls   []string
	events  []*runtimeapi.ContainerEventResponse // GetContainerEvents sends them and ends

	execURL     string           // what Exec answers with instead
	streams     streaming.Server // makes the URLs of Exec, Attach and PortForward
	asked       string           // the verbose status of containers, for attach
	stats       []*runtimeapi.ContainerStats
	refuseRun   error                    // what RunPodSandbox returns
	info        map[string]string        // what Status tells beside the warnings
	away        error                    // what ListPodSandbox returns
	refuseStart error                    // what StartContainer returns
	hold        chan struct{}            // StopContainer, RemoveContainer and RemovePodSandbox wait until it is closed
	lanes       []*berthv1.Lane          // what Lanes returns, and UnderWay in sentences
	operations  []*berthv1.Operation     // what UnderWay returns besides
	ended       map[string]*berthv1.Exit // what Ended returns
	transfers   []*berthv1.Transfer      // what Transfers returns
	plain       bool                     // the service lacks Images
	reason      *berthv1.WhyResponse     // what Why returns
	records     []*berthv1.Record
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
	nodeapi.RegisterNode(s, fakeNode{f: f})
	nodeapi.RegisterControl(s, fakeControl{f: f})
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
		lanes: []*berthv1.Lane{{
			Id:      "ct1",
			State:   "backing off",
			Since:   timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			Until:   timestamppb.New(time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC)),
			Tries:   3,
			Waiting: 1,
			Error:   "unmount: busy",
			Head:    "release",
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
	f.sandbox = r.GetConfig()
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

// fakeNode and fakeControl are the services of berth.v1 of a fake.
type fakeNode struct {
	berthv1.UnimplementedNodeServer
	f *fake
}

type fakeControl struct {
	berthv1.UnimplementedControlServer
	f *fake
}

func (c fakeControl) ImportImages(_ context.Context, r *berthv1.ImportImagesRequest) (*berthv1.ImportImagesResponse, error) {
	return &berthv1.ImportImagesResponse{
		Names:   []string{filepath.Base(r.GetPath()) + " as " + r.GetRef()},
		LeftOut: []string{"image other:1: it is for another node"},
	}, nil
}

func (c fakeControl) PruneImages(_ context.Context, r *berthv1.PruneImagesRequest) (*berthv1.PruneImagesResponse, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.call("prune %v %s", r.GetDryRun(), r.GetOlderThan().AsDuration())
	return &berthv1.PruneImagesResponse{
		Images: []*berthv1.PrunedImage{
			{Id: "sha256:1", Names: []string{"old:1"}, Bytes: 7 << 20},
			{Id: "sha256:2", Names: []string{"stuck:1"}, Error: "the disk is read-only"},
		},
		Bytes:  7 << 20,
		Used:   2,
		Pinned: 1,
	}, nil
}

func (c fakeControl) RemoveImage(_ context.Context, r *berthv1.RemoveImageRequest) (*berthv1.RemoveImageResponse, error) {
	switch {
	case c.f.plain:
		return nil, status.Error(codes.Unimplemented, "unknown method RemoveImage")
	case r.GetImage() == "one:1":
		return &berthv1.RemoveImageResponse{Id: "sha256:1", Names: []string{"one:1"}, Left: []string{"other:2"}}, nil
	case r.GetImage() == "last:1":
		return &berthv1.RemoveImageResponse{
			Id:     "sha256:2",
			Names:  []string{"last:1"},
			Users:  []string{"team/web/app"},
			Bytes:  7 << 20,
			Pinned: true,
		}, nil
	}
	return nil, status.Errorf(codes.NotFound, "image %q is not on this node", r.GetImage())
}

func (n fakeNode) Transfers(context.Context, *berthv1.TransfersRequest) (*berthv1.TransfersResponse, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	n.f.call("transfers")
	return &berthv1.TransfersResponse{Transfers: n.f.transfers}, nil
}

func (n fakeNode) Images(context.Context, *berthv1.ImagesRequest) (*berthv1.ImagesResponse, error) {
	if n.f.plain {
		return nil, status.Error(codes.Unimplemented, "unknown method Images")
	}
	return &berthv1.ImagesResponse{Images: []*berthv1.Image{
		{
			Id:       "sha256:0123456789abcdef",
			RepoTags: []string{"busybox:1"},
			Size:     5 << 20,
			Disk:     9 << 20,
			Frees:    3 << 20,
			Created:  timestamppb.New(time.Now().Add(-3*time.Hour - time.Second)),
			Pinned:   true,
			Pins:     []string{"configuration", "archive"},
			Users:    []string{"a/b/c", "d/e/f", "g/h/i"},
		},
		{Id: "sha256:fedcba", RepoDigests: []string{"x@sha256:1"}, Artifact: "application/vnd.model"},
	}}, nil
}

func (n fakeNode) Disk(context.Context, *berthv1.DiskRequest) (*berthv1.DiskResponse, error) {
	return &berthv1.DiskResponse{
		Path:   "/var/lib/berth",
		Total:  50 << 30,
		Free:   20 << 30,
		Shares: []*berthv1.Share{{What: "images", Count: 3, Bytes: 70 << 20, Reclaimable: 40 << 20}, {What: "logs", Bytes: 1 << 20, Unknown: 1}},
	}, nil
}

func (n fakeNode) Why(_ context.Context, r *berthv1.WhyRequest) (*berthv1.WhyResponse, error) {
	if r.GetId() != "c1" {
		return nil, status.Errorf(codes.NotFound, "timeline of %q: not found", r.GetId())
	}
	return n.f.reason, nil
}

func (n fakeNode) Timeline(_ context.Context, r *berthv1.TimelineRequest) (*berthv1.TimelineResponse, error) {
	if n.f.events != nil {
		return nil, status.Error(codes.Unimplemented, "another runtime")
	}
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if r.GetId() == "" && r.GetAfter() == 0 {
		return &berthv1.TimelineResponse{Last: 2, Entries: []*berthv1.Entry{
			{Number: 1, At: at, Kind: "ExitReported", What: "exit reported"},
			{Number: 2, At: at, Kind: "ExitSettled", Id: "bbc333", Name: "default/db/sql", What: "exit settled", Detail: "code=42"},
		}}, nil
	}
	return &berthv1.TimelineResponse{Id: r.GetId(), Entries: []*berthv1.Entry{{At: at, What: "exit settled", Detail: "code=42", Error: "late"}}}, nil
}

func (n fakeNode) Records(_ context.Context, r *berthv1.RecordsRequest) (*berthv1.RecordsResponse, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	n.f.call("records after %d", r.GetAfter())
	have := uint64(len(n.f.records))
	return &berthv1.RecordsResponse{Records: n.f.records[min(r.GetAfter(), have):], Last: have}, nil
}

func (n fakeNode) State(context.Context, *berthv1.StateRequest) (*berthv1.StateResponse, error) {
	return &berthv1.StateResponse{
		Version: "test",
		Exact:   true,
		Objects: []*berthv1.Object{{State: "RUNNING", Image: "registry.example/app:1"}},
	}, nil
}

func (n fakeNode) Ended(context.Context, *berthv1.EndedRequest) (*berthv1.EndedResponse, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.f.runtime != "" { // another runtime
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	return &berthv1.EndedResponse{Exits: n.f.ended}, nil
}

// UnderWay has a sentence for each lane.
func (n fakeNode) UnderWay(context.Context, *berthv1.UnderWayRequest) (*berthv1.UnderWayResponse, error) {
	resp := &berthv1.UnderWayResponse{Operations: n.f.operations}
	for _, l := range n.f.lanes {
		o := &berthv1.Operation{Kind: "step", What: l.GetHead(), Id: l.GetId(), Tries: l.GetTries(), Error: l.GetError()}
		o.Sentence = fmt.Sprintf("%s goes through the step %s; attempt %d has failed: %s.", nameOf(o), o.GetWhat(), o.GetTries(), o.GetError())
		resp.Operations = append(resp.Operations, o)
	}
	return resp, nil
}

func (n fakeNode) Lanes(context.Context, *berthv1.LanesRequest) (*berthv1.LanesResponse, error) {
	if n.f.runtime != "" { // another runtime
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	return &berthv1.LanesResponse{Lanes: n.f.lanes}, nil
}
