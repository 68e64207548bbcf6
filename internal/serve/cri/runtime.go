// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/internal/base/version"
)

// Pods is the runtime service's view of the controller.
type Pods interface {
	RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
	CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, timeout time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container
	ReopenContainerLog(ctx context.Context, id string) error
	Updates
}

// Health answers Status and RuntimeConfig.
type Health interface {
	// Runtime and Network are nil when they are ready, else why not.
	Runtime() error
	Network() error
	// Info is for Status with verbose: JSON documents by name.
	Info() map[string]any
	Handlers() []*runtimeapi.RuntimeHandler
	SystemdCgroup() bool
	// PulledProfiles reports whether seccomp profiles from registries can be applied.
	PulledProfiles() bool
	// WritableCgroups reports whether a container can have its control group writable now.
	WritableCgroups() bool
	// SetPodCIDR takes the kubelet's address range for pods, for Info.
	SetPodCIDR(cidrs string)
}

// Events is a subscription to container events. Close ends it.
type Events interface {
	Next(ctx context.Context) (*runtimeapi.ContainerEventResponse, error)
	Close()
}

// Runtime serves CRI's runtime service.
type Runtime struct {
	runtimeapi.UnsafeRuntimeServiceServer // a new RPC of CRI does not compile until it is served

	Pods        Pods
	Streams     Streams
	Stats       Stats
	Checkpoints Checkpoints
	Restorer    Restorer
	Health      Health
	Subscribe   func() Events
	Name        string // of the runtime, for Version; "": berth

	// EncodeAgain encodes each item of a list anew in each answer: see codec.go.
	EncodeAgain bool
}

// APIVersion is the version of CRI that berth serves.
const APIVersion = "v1"

// Version returns the name and the version of the runtime.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       cmp.Or(r.Name, "berth"),
		RuntimeVersion:    version.Semantic(),
		RuntimeApiVersion: APIVersion,
	}, nil
}

// Status reports whether the runtime and the network are ready.
func (r *Runtime) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	cond := func(kind, reason string, err error) *runtimeapi.RuntimeCondition {
		c := &runtimeapi.RuntimeCondition{Type: kind, Status: err == nil}
		if err != nil {
			c.Reason, c.Message = reason, err.Error()
		}
		var known interface{ ConditionReason() string }
		if errors.As(err, &known) {
			c.Reason = known.ConditionReason()
		}
		return c
	}
	handlers := r.Health.Handlers()
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			cond(runtimeapi.RuntimeReady, "ContainerdNotReady", r.Health.Runtime()),
			cond(runtimeapi.NetworkReady, "NetworkPluginNotReady", r.Health.Network()),
		}},
		RuntimeHandlers: handlers,
		Features:        features(handlers),
	}
	cri138.Set(resp.Features, &cri138.RuntimeFeatures{CgroupMountMode: r.Health.WritableCgroups(), SeccompProfileOci: r.Health.PulledProfiles()})
	if req.GetVerbose() {
		resp.Info = map[string]string{}
		for k, v := range r.Health.Info() {
			b, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			resp.Info[k] = string(b)
		}
	}
	return resp, nil
}

// features returns the features that the node advertises as a whole. Each handler that can give a
// pod a user namespace can do so on the host's network, too.
func features(handlers []*runtimeapi.RuntimeHandler) *runtimeapi.RuntimeFeatures {
	return &runtimeapi.RuntimeFeatures{
		SupplementalGroupsPolicy: true,
		MountOptions:             true,
		UserNamespacesHostNetwork: slices.ContainsFunc(handlers, func(h *runtimeapi.RuntimeHandler) bool {
			return h.GetFeatures().GetUserNamespaces()
		}),
	}
}

// RuntimeConfig reports the cgroup driver, so that the kubelet uses the same one.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	d := runtimeapi.CgroupDriver_CGROUPFS
	if r.Health.SystemdCgroup() {
		d = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: d}}, nil
}

// RunPodSandbox makes a sandbox.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := checkSandbox("run sandbox", req.GetConfig()); err != nil {
		return nil, err
	}
	id, err := r.Pods.RunPodSandbox(ctx, req.GetConfig(), req.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// checkSandbox refuses a name that nothing can have. call is named in the error.
func checkSandbox(call string, c *runtimeapi.PodSandboxConfig) error {
	m := c.GetMetadata()
	switch {
	case c == nil:
		return invalid("%s: config is missing", call)
	case m == nil:
		return invalid("%s: config.metadata is missing", call)
	case m.GetName() == "":
		return invalid("%s: config.metadata.name is empty", call)
	}
	for field, v := range map[string]string{"name": m.GetName(), "namespace": m.GetNamespace(), "uid": m.GetUid()} {
		if strings.ContainsAny(v, "/\x00\n") || v == ".." || len(v) > 253 {
			return invalid("%s: config.metadata.%s %q has an invalid character, or is too long", call, field, v)
		}
	}
	return nil
}

// checkContainer refuses a name that nothing can have, and a container without an image. call is
// named in the error.
func checkContainer(call string, c *runtimeapi.ContainerConfig) error {
	switch {
	case c == nil:
		return invalid("%s: config is missing", call)
	case c.GetMetadata().GetName() == "":
		return invalid("%s: config.metadata.name is empty", call)
	case strings.ContainsAny(c.GetMetadata().GetName(), "/\x00\n"):
		return invalid("%s: config.metadata.name %q contains a slash, a newline or a zero byte", call, c.GetMetadata().GetName())
	case c.GetImage().GetImage() == "":
		return invalid("%s %s: config.image is empty", call, c.GetMetadata().GetName())
	}
	return nil
}

// StopPodSandbox stops a sandbox.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := r.Pods.StopPodSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a sandbox.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := r.Pods.RemovePodSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns the status of one sandbox.
func (r *Runtime) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return r.Pods.PodSandboxStatus(ctx, req.GetPodSandboxId(), req.GetVerbose())
}

// ListPodSandbox lists sandboxes.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: r.Pods.ListPodSandbox(req.GetFilter())}, nil
}

// CreateContainer makes a container.
func (r *Runtime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	c := req.GetConfig()
	if err := checkContainer("create container", c); err != nil {
		return nil, err
	}
	id, err := r.Pods.CreateContainer(ctx, req.GetPodSandboxId(), c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer starts a container.
func (r *Runtime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	if err := r.Pods.StartContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer stops a container.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	timeout := time.Duration(min(max(req.GetTimeout(), 0), 1<<32)) * time.Second
	if err := r.Pods.StopContainer(ctx, req.GetContainerId(), timeout); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container.
func (r *Runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if err := r.Pods.RemoveContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ContainerStatus returns the status of one container.
func (r *Runtime) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return r.Pods.ContainerStatus(ctx, req.GetContainerId(), req.GetVerbose())
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.Pods.ListContainers(req.GetFilter())}, nil
}

// ReopenContainerLog begins a new log file after the old one was renamed.
func (r *Runtime) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := r.Pods.ReopenContainerLog(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// GetContainerEvents streams events until the client hangs up or the server ends.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	sub := r.Subscribe()
	defer sub.Close()
	for {
		ev, err := sub.Next(stream.Context())
		if err != nil {
			if cause := context.Cause(stream.Context()); cause != nil {
				return cause
			}
			return err
		}
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
}
