// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 4: kill -9 of berth at each step of a start, which goes on when berth is gone, or once
// berth is back. The container can be started, or has been. It was EXITED with 128 StartError for
// good, since the start that was asked for again stumbled over what the first had made.
func TestAStartThatKill9CutOffCanBeAskedForAgain(t *testing.T) {
	both(t, nil, func(t *testing.T, n *node.Node, f *faults) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for i, step := range []string{"shim.Create", "runc.create", "shim.Start", "runc.start"} {
			for _, back := range []bool{false, true} {
				name := fmt.Sprintf("c%d-%v", i, back)
				id := n.Create(pod, cfg, node.ContainerConfig(name, "sh", "-c", exitOnTerm(42)))
				f.set(step, "stall", "id "+id)
				started := make(chan struct{})
				go func() {
					defer close(started)
					_, _ = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
				}()
				n.Until("the start is at "+step, func() bool { return len(f.hits(step)) > 0 })
				n.Berth.Kill(syscall.SIGKILL)
				<-started
				if !back {
					f.clear(step)
				}
				n.StartBerth()
				if back {
					f.clear(step)
				}
				n.Until(name+", cut off at "+step+", runs", func() bool { return startAgain(t, n, id) })
				ready(n, id)
				if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
					t.Fatal(err)
				}
				expectExact(t, n, id, 42)
			}
		}
	})
}

// startAgain asks for the start of a container that is CREATED, and reports whether it runs.
func startAgain(t *testing.T, n *node.Node, id string) bool {
	t.Helper()
	switch st := n.Container(id); st.GetState() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return true
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			t.Logf("asked for again: %v", err)
		}
	default:
		t.Fatalf("a start that was cut off cannot be asked for again: %v\n%s", st, timeline(t, n, id))
	}
	return false
}
