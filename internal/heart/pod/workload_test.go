// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// Sandboxes of containerd's controllers go the same way: whatever makes them, they are watched,
// stopped, settled, released and recovered by the same lanes.
func TestSandboxersOfContainerds(t *testing.T) {
	for _, handler := range []string{"", "shim", "vmm"} {
		t.Run(handler, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", handler)
				b.run(p, "c1")
				endpoint, object := b.Unit(p).Now().Endpoint, b.Spec(p) != nil
				if remote := handler != ""; (endpoint.Address != "") != remote || object == remote {
					t.Errorf("endpoint %v, container object %v", endpoint, object)
				}
				loaded := b.Records()
				b.stop()
				again := restart(t, b.World, loaded)
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
					t.Fatalf("after a restart: %v", l)
				}
				lift := b.Refuse("delete-task", p, errors.New("not now"))
				if err := again.StopPodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
					t.Errorf("stopped: %v", l)
				}
				lift() // its own lane tries again
				if err := again.RemovePodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				again.expectLeft(nil)
			})
		})
	}
}

func TestAStopOfTheBuiltInSandboxer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		b.Hold("delete-task", p) // the release is not to come first
		sandboxer := pod.BuiltInSandboxer(b.ports.Runtime)
		if err := sandboxer.Stop(t.Context(), p, time.Minute); err != nil { // it ignores the signal
			t.Fatal(err)
		}
		if st, err := sandboxer.Status(t.Context(), p); err != nil || !st.Stopped || st.Code != 137 {
			t.Errorf("%v %v", st, err)
		}
	})
}
