// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"encoding/json"
	"strings"
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// cAdvisor gets what it needs of a container, and nothing else can be done on the socket.
func TestCAdvisorGetsWhatItNeeds(t *testing.T) {
	h := newHost(t)
	h.run("pinned")
	h.shim("pinned", 7)
	h.run("astray")
	h.shim("astray", 9)
	h.inside[9] = "netns-other"
	h.run("shimless")
	h.run("paused", func(t *pod.Target) {
		t.Pinned, t.Process = false, state.Process{Process: pidfd.Process{Pid: 42}}
	})
	container := func(t *pod.Target) {
		t.PodID, t.Pinned, t.Process = "paused", false, state.Process{Process: pidfd.Process{Pid: 43}}
		t.Config = &runtimeapi.ContainerConfig{
			Image:  &runtimeapi.ImageSpec{Image: "example/web:1"},
			Labels: map[string]string{"io.kubernetes.container.name": "web"},
			Envs:   []*runtimeapi.KeyValue{{Key: "TOKEN", Value: []byte("secret")}},
		}
	}
	h.run("web", container)
	h.run("created", container, func(t *pod.Target) { t.Running = false })
	h.run("ended", container, func(t *pod.Target) {
		over := make(chan struct{})
		close(over)
		t.Ended, t.Running = over, false
	})
	h.run("virtual", container, func(t *pod.Target) { t.Process = state.Process{} })
	h.run("taskless", container, func(t *pod.Target) { t.Process = state.Process{} })
	h.start()
	conn, err := grpc.NewClient("unix://"+h.path("link"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// crictl without a configuration comes here first.
	if _, err := runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{}); err == nil || !strings.Contains(err.Error(), "/etc/crictl.yaml") {
		t.Errorf("a client of CRI is told: %v", err)
	}
	for id, want := range map[string]struct {
		kind   string
		image  string
		pid    uint32
		status tasktypes.Status
	}{
		"pinned":   {"sandbox", "", 7, tasktypes.Status_RUNNING},
		"astray":   {"sandbox", "", 0, 0},
		"shimless": {"sandbox", "", 0, 0},
		"paused":   {"sandbox", "", 42, tasktypes.Status_RUNNING},
		"web":      {"container", "example/web:1", 43, tasktypes.Status_RUNNING},
		"created":  {"container", "example/web:1", 43, tasktypes.Status_CREATED},
		"virtual":  {"container", "example/web:1", 77, tasktypes.Status_RUNNING},
		"taskless": {"container", "example/web:1", 0, 0},
		"ended":    {},
		"we":       {},
		"unknown":  {},
	} {
		c, err := containersapi.NewContainersClient(conn).Get(t.Context(), &containersapi.GetContainerRequest{ID: id})
		if want.kind == "" {
			if status.Code(err) != codes.NotFound {
				t.Errorf("%s: %v, %v", id, c, err)
			}
		} else if err != nil || c.GetContainer().GetLabels()["io.cri-containerd.kind"] != want.kind || c.GetContainer().GetImage() != want.image {
			t.Errorf("%s: %v, %v", id, c, err)
		}
		var s specs.Spec
		if err == nil && (json.Unmarshal(c.GetContainer().GetSpec().GetValue(), &s) != nil || s.Process == nil || len(s.Process.Env) > 0) {
			t.Errorf("%s has the specification %s", id, c.GetContainer().GetSpec().GetValue())
		}
		r, err := tasksapi.NewTasksClient(conn).Get(t.Context(), &tasksapi.GetRequest{ContainerID: id})
		if want.pid == 0 {
			if status.Code(err) != codes.NotFound {
				t.Errorf("task %s: %v, %v", id, r, err)
			}
		} else if err != nil || r.GetProcess().GetPid() != want.pid || r.GetProcess().GetStatus() != want.status {
			t.Errorf("task %s: %v, %v", id, r, err)
		}
	}
	if v, err := versionapi.NewVersionClient(conn).Version(t.Context(), &emptypb.Empty{}); err != nil || v.GetVersion() != "v1" {
		t.Errorf("version %v, %v", v, err)
	}
	if _, err := containersapi.NewContainersClient(conn).List(t.Context(), &containersapi.ListContainersRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a list: %v", err)
	}
	if _, err := tasksapi.NewTasksClient(conn).Kill(t.Context(), &tasksapi.KillRequest{ContainerID: "web", Signal: 9}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a kill: %v", err)
	}
}
