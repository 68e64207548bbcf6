// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestATargetDescribesWhatRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sb := b.pod("p1", "")
		c := b.run(sb, "c1")
		got, err := b.Target(c[:10])
		if err != nil || got.ID != c || got.PodID != sb || !got.Running || got.NetNS != "/netns/"+sb || got.Process.Pid == 0 {
			t.Errorf("%+v %v", got, err)
		}
		b.exit(c, 0)
		<-got.Ended
		if got, err = b.Target(sb); err != nil || got.ID != sb || got.PodID != sb || !got.Running {
			t.Errorf("%+v %v", got, err)
		}
		if _, err = b.Target("x"); !errdefs.IsNotFound(err) || err.Error() != `container or sandbox "x": not found` {
			t.Error(err)
		}
		if _, err = b.Target(""); !errdefs.IsInvalidArgument(err) {
			t.Error(err)
		}
	})
}
