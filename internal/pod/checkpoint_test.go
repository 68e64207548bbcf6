// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/test/world"
)

// PROPERTIES 22: a restore is refused by name, and makes nothing.
func TestACheckpointIsNotAnImage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		for _, image := range []string{"/var/lib/kubelet/checkpoints/c.tar", world.Checkpoint} {
			cfg := ctr("c1")
			cfg.Image.Image = image
			if _, err := b.CreateContainer(t.Context(), p, cfg); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "checkpoint") {
				t.Errorf("%s: %v", image, err)
			}
		}
		if list := b.ListContainers(nil); len(list) != 0 {
			t.Errorf("%v", list)
		}
	})
}
