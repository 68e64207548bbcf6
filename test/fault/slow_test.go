// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
)

// PROPERTIES 21: an OCI runtime that takes three times as long for each delete as an attempt may
// take. Each attempt was cut off at the same time and began anew, for ever.
func TestADeleteThatTakesLongerThanAnAttemptEnds(t *testing.T) {
	both(t, []string{"--set", "lanes.backoff_max=30s"}, func(t *testing.T, n *node.Node, f *faults) {
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		f.set("runc.delete", "stall 3s", "id "+id) // before the end, after which it may be deleted at once
		end(t, n.Pid(id))
		node.ExpectExit(t, n.Ended(id), 42, "Error")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("%v\n%s", err, timeline(t, n, id))
		}
		if len(f.hits("runc.delete")) == 0 {
			t.Error("the rule is not in force: this shows nothing")
		}
		f.clear("runc.delete")
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
	})
}

// PROPERTIES 1: the creation of a container hangs with containerd. Stopping its pod waited for it,
// and held the network, for four minutes.
func TestACreationThatHangsDoesNotHoldUpTheStopOfItsPod(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{External: true})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	n.Containerd.Signal(syscall.SIGSTOP)
	goesOn := func() { n.Containerd.Signal(syscall.SIGCONT) }
	defer goesOn()
	create := func(ctx context.Context) error {
		_, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: pod, SandboxConfig: cfg, Config: node.ContainerConfig("hangs", "sleep", "1000"),
		})
		return err
	}
	// The first caller gives up, and the creation goes on: from then on it is certain that it is
	// under way.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := create(ctx); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("the creation does not hang: %v", err)
	}
	created := make(chan error, 1)
	go func() { created <- create(t.Context()) }()
	stop, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.StopPodSandbox(stop, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	if err := <-created; err == nil {
		t.Error("a container was created in a pod that was stopped")
	}
	goesOn()
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
}

// attempts is how often the lane of a container has tried what it is at.
func attempts(t *testing.T, n *node.Node, id string) int {
	t.Helper()
	lanes, err := n.Client.Node.Lanes(t.Context(), &berthv1.LanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lanes.GetLanes() {
		if strings.HasPrefix(l.GetId(), id) {
			return int(l.GetTries())
		}
	}
	return 0
}
