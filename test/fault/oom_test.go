// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 10: a process that the OOM killer ends is OOMKilled, at once or after a while, init
// or a child that init fails with; a plain SIGKILL never is, whoever sends it; nor is what ends
// well.
func TestOOMKilledIsReportedWhenItIsTrueAndOnlyThen(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, f *faults) {
		f.set("shim.oom-event", "swallow") // the event comes late, or not at all
		const limit = 16 << 20
		const eat = "tail /dev/zero"
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for round := range times(t, 1) {
			for i, tt := range []struct {
				script string
				code   int32
				reason string
			}{
				{"exec " + eat, 137, "OOMKilled"},
				{"sleep 0.5; exec " + eat, 137, "OOMKilled"},
				{eat + "; exit $?", 137, "OOMKilled"},
				{eat + " || exit 3", 3, "OOMKilled"},
				{eat + "; exit 0", 0, "Completed"},
				{"exec sleep 1000", 137, "Error"}, // killed below
				{"sh -c 'kill -9 $$'; exit $?", 137, "Error"},
				{"kill -9 $$; exit 5", 5, "Error"}, // init of a PID namespace is safe from itself
			} {
				c := node.ContainerConfig(fmt.Sprint("c", round, "-", i), "sh", "-c", "echo ready; "+tt.script)
				c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: limit}
				id := n.Run(pod, cfg, c)
				if tt.script == "exec sleep 1000" {
					ready(n, id)
					if err := unix.Kill(n.Pid(id), unix.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				st := n.Ended(id)
				node.ExpectExit(t, st, tt.code, tt.reason)
				if t.Failed() {
					t.Fatalf("%s: %v\n%s", tt.script, st, timeline(t, n, id))
				}
			}
		}
	})
}
