// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/test/node"
)

// PROPERTIES 49: the first process of a container calls reboot(2), or another one does. The kernel
// tells the shim that SIGHUP or SIGINT has ended the container, and a pidfd that its first thread has
// ended with 0, or by SIGKILL. Of ten containers that rebooted six were "0 Completed", which makes a
// success of a Job, and four "129 Error".
func TestAContainerThatRebootsHasOneCode(t *testing.T) {
	t.Parallel()
	const times = 4
	node.Both(t, func(t *testing.T, n *node.Node) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for _, tc := range []struct {
			script string
			code   int32
		}{
			{"exec reboot -nf", 129},
			{"exec halt -nf", 130},
			{"exec poweroff -nf", 130},
			{"reboot -nf; sleep 1000", 129},
			{"poweroff -nf; sleep 1000", 130},
		} {
			var ids []string
			for range times {
				c := node.ContainerConfig("c", "sh", "-c", tc.script)
				c.Metadata.Attempt = uint32(len(ids))
				c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_BOOT"}}
				id := n.Create(pod, cfg, c)
				if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
				node.ExpectExit(t, n.Ended(id), tc.code, "Error")
			}
			for _, id := range ids {
				node.ExpectExit(t, n.Container(id), tc.code, "Error") // also later
				for _, e := range n.History(id) {
					if e.Kind == event.Kind(event.ExitCorrected{}) {
						t.Errorf("%s: %s was corrected", tc.script, id)
					}
				}
				if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
