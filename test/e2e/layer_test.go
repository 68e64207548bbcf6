// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"berth/test/node"
)

// The release of a container does not wait until what others write is on the disk: its writable
// layer is mounted without syncs, unless that is configured.
func TestAWritableLayerIsNotSynced(t *testing.T) {
	t.Parallel()
	for _, o := range []node.Options{
		{Args: []string{"--set", "containerd.sync_layers=false"}},
		{Args: []string{"--set", "containerd.sync_layers=false"}, External: true},
		{Args: []string{"--set", "containerd.sync_layers=true"}},
	} {
		n := node.Start(t, o)
		cfg := n.PodConfig()
		c := node.ContainerConfig("c", "sh", "-c", "echo written >/file && sync /file && grep ' / / ' /proc/self/mountinfo")
		id := n.Run(n.Pod(cfg), cfg, c)
		node.ExpectExit(t, n.Ended(id), 0, "Completed")
		got := n.Log(id)
		if !strings.Contains(got, "overlay") {
			t.Errorf("its root is %q", got)
		}
		if unsynced := strings.Contains(got, "volatile"); unsynced != strings.HasSuffix(o.Args[1], "=false") {
			t.Errorf("with %q its root is %q", o.Args, got)
		}
	}
}
