// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The kubelet forgets a pod, by its UID, when the sandbox in the event is reported deleted: the
// event must not name the pod while another sandbox of it lives.
func TestTheDeletionOfAnOldSandboxDoesNotNameItsPod(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sub := b.feed.Subscribe()
		defer sub.Close()
		old := b.pod("p1", "")
		cfg := config("p1")
		cfg.Metadata.Attempt = 1
		current, err := b.RunPodSandbox(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		for i, id := range []string{old, current} {
			if err := b.RemovePodSandbox(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			for {
				ev, err := sub.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if ev.GetContainerId() != id || ev.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
					continue
				}
				if named := ev.GetPodSandboxStatus() != nil; named != (i == 1) {
					t.Errorf("sandbox %d of the pod: named %v", i, named)
				}
				break
			}
		}
	})
}
