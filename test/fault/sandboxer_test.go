// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// A shim with a sandbox API, by containerd's own sandbox controller, behind the same verbs as the
// built-in pause process: it is watched, recovered, stopped, and given back with the same retries.
func TestSandboxesOfContainerdsController(t *testing.T) {
	both(t, []string{"--set", `runtimes.runc.sandboxer="shim"`}, func(t *testing.T, n *node.Node, f *faults) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		ready := func() bool {
			st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			return err == nil && st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
		}
		ends, runs := n.Run(pod, cfg, node.ContainerConfig("ends", "sh", "-c", "exit 42")), n.Run(pod, cfg, node.ContainerConfig("runs", "sleep", "1000"))
		node.ExpectExit(t, n.Ended(ends), 42, "Error")
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || !ready() {
			t.Fatalf("after a restart: ready %v, %v", ready(), st)
		}
		// The sandbox's own process ends by itself: the pod is not ready any more, and its
		// containers are there to be stopped.
		if err := syscall.Kill(n.SandboxPid(pod), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.Until("NOTREADY", func() bool { return !ready() })
		f.set("shim.ShutdownSandbox", "fail not now", "times 2")
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
	})
}
