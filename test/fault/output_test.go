// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 14: somebody holds a container's output open when it ends: the exit is visible all the
// same, what was written is in the log to the last byte, and the container can be removed.
func TestOutputThatIsHeldOpenHoldsUpNobody(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		const lines = 5000
		_, id := n.Sh(fmt.Sprintf("trap 'i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; printf unfinished; exit 42' TERM; echo ready; sleep 1000 & wait", lines))
		ready(n, id)
		held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", n.Pid(id)), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Container(id), 42, "Error")
		var want strings.Builder
		want.WriteString("ready\n")
		for i := range lines {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		want.WriteString("unfinished")
		n.Until("all that was written is in the log", func() bool { return len(n.Log(id)) >= want.Len() })
		if got := n.Log(id); got != want.String() {
			t.Errorf("the log has %d bytes, %d were written", len(got), want.Len())
		}
		if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	})
}

// The same by a process of the pod's that outlives the container, which holds the output open
// itself: in a PID namespace that the pod shares, it is a sibling of the container's in another
// group.
func TestAProcessThatOutlivesItsContainerWithItsOutput(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		cfg := n.PodConfig()
		cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "sh", "-c", "echo before; (trap '' TERM HUP; while :; do sleep 0.1; done) & exit 9")
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		id := n.Run(pod, cfg, c)
		node.ExpectExit(t, n.Ended(id), 9, "Error")
		n.Until("the log is whole", func() bool { return n.Log(id) == "before\n" })
	})
}
