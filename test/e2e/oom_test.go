// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 36: a child is killed by the OOM killer and the program goes on. That is counted, the
// next berth knows it, and the end that comes later is not OOMKilled. Whose limit was reached is in
// the message of one that is.
func TestAnOOMKillThatAContainerSurvivesDoesNotExplainItsEnd(t *testing.T) {
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	eats := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		return n.Run(pod, cfg, c)
	}
	const survive = "tail /dev/zero; trap 'exit 1' TERM; echo ready; while :; do sleep 0.05; done"
	itself, killed, away := eats("itself", survive), eats("killed", survive), eats("away", survive)
	init := eats("init", "exec tail /dev/zero")
	survived := func(id string) bool {
		st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		return err == nil && strings.HasPrefix(st.GetStatus().GetMessage(), "1 OOM kill survived")
	}
	for _, id := range []string{itself, killed, away} {
		n.Until("the kill is counted", func() bool { return survived(id) })
	}
	node.ExpectExit(t, n.Ended(init), 137, "OOMKilled")
	if got := n.Ended(init).GetMessage(); got != "the OOM killer fired: the container reached its memory limit" {
		t.Errorf("the message is %q", got)
	}
	for id, sig := range map[string]syscall.Signal{itself: syscall.SIGTERM, killed: syscall.SIGKILL} {
		if err := syscall.Kill(n.Pid(id), sig); err != nil {
			t.Fatal(err)
		}
	}
	node.ExpectExit(t, n.Ended(itself), 1, "Error")
	node.ExpectExit(t, n.Ended(killed), 137, "Error")

	pid := n.Pid(away)
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	if !survived(away) {
		t.Error("the next berth does not know of the kill")
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Measured(away), 1, "Error")
}
