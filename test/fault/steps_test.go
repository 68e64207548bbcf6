// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 4: kill -9 of berth, of containerd or of both at each step of a pod's life that
// another program takes, while that program is at work and still is when they are back. Other pods
// go on, what had ended is reported with its code, and once the step goes on all can be removed and
// nothing is left. One of the three is killed at a step: see [node.Pick].
//
// PROPERTIES 37: the next berth ends a CNI plug-in that is at work.
func TestKill9AtEachStepOfALife(t *testing.T) {
	t.Parallel()
	t.Run("without a process", func(t *testing.T) {
		kill9AtEach(t, withoutPause, "bridge.ADD", "portmap.ADD", "shim.bootstrap", "shim.CreateSandbox", "shim.Create", "runc.create", "shim.Start", "runc.start",
			"shim.Delete", "runc.delete", "shim.ShutdownSandbox", "bridge.DEL", "portmap.DEL")
	})
	t.Run("with a process", func(t *testing.T) {
		kill9AtEach(t, withPause, "shim.bootstrap", "shim.Create", "runc.create", "shim.Start", "runc.start", "shim.Delete", "runc.delete", "shim.Shutdown")
	})
}

func kill9AtEach(t *testing.T, args []string, steps ...string) {
	t.Helper()
	both(t, args, func(t *testing.T, n *node.Node, f *faults) {
		victims := []string{"berth"}
		if n.Containerd != nil {
			victims = []string{"berth", "containerd", "both"}
		}
		for _, step := range steps {
			for _, victim := range node.Pick(t, "victim at "+step, victims...) {
				f.set(step, "stall")
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					// A pod may be refused for what the last round left, as when its bridge is
					// being taken down; a kubelet asks again, too.
					for ctx.Err() == nil && len(f.hits(step)) == 0 {
						live(ctx, n)
					}
				}()
				n.Until("a life is at "+step, func() bool { return len(f.hits(step)) > 0 })
				if victim != "containerd" {
					n.Berth.Kill(syscall.SIGKILL)
				}
				if victim != "berth" {
					n.Containerd.Kill(syscall.SIGKILL)
					n.StartContainerd()
				}
				cancel()
				<-done
				if victim != "containerd" {
					n.StartBerth()
				}
				n.Until("berth is connected", n.Connected)
				expectEnds(t, n, step)
				f.clear(step)
				// What a caller asked for who has gone may go on, and be there later.
				n.Until("everything is removed", func() bool {
					n.RemoveAll(t.Context())
					return n.Empty(t.Context()) || t.Failed()
				})
				n.NoLeaks(t.Context())
				if t.Failed() {
					t.Fatalf("at %s, killed: %s", step, victim)
				}
			}
		}
	})
}

// live makes a pod, runs a container in it that ends with 42, and removes both. It gives up at the
// first error.
func live(ctx context.Context, n *node.Node) {
	cfg := n.PodConfig()
	cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: 30997, ContainerPort: 80}}
	pod, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return
	}
	c, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: cfg, Config: node.ContainerConfig("c", "sh", "-c", "exit 42"),
	})
	if err != nil {
		return
	}
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		return
	}
	for { // a removal that comes first would kill it
		st, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetContainerId()})
		if err != nil {
			return
		}
		if st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			break
		}
	}
	_, _ = n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()})
}

// expectEnds expects that each container which has ended did so with its own code, or was not
// started.
func expectEnds(t *testing.T, n *node.Node, step string) {
	t.Helper()
	list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetContainers() {
		resp, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
		if err != nil {
			continue // its removal goes on
		}
		st := resp.GetStatus()
		if st.GetState() == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
			t.Errorf("%s: %v", step, st)
		}
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		switch {
		case st.GetExitCode() == 42 && st.GetReason() == "Error":
		case st.GetExitCode() == 128 && st.GetReason() == "StartError":
		case st.GetExitCode() == 137 || st.GetExitCode() == 255: // runc's own init, when its start was cut off
			if step != "runc.start" && step != "shim.Start" && step != "runc.create" && step != "shim.Create" {
				t.Errorf("%s: %v\n%s", step, st, timeline(t, n, st.GetId()))
			}
		default:
			t.Errorf("%s: %v", step, st)
		}
	}
}
