// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// containerd hangs, then is killed, then comes back: berth stays, reading goes on being served,
// exits are reported by the kernel, and afterwards all goes on, also for what was asked meanwhile.
// A stopped containerd accepts connections and answers nothing.
//
// PROPERTIES 13.
func TestContainerdThatHangsThenDiesHoldsUpNoExit(t *testing.T) {
	n, _ := start(t, node.Options{External: true, Args: quick})
	pod, stops := n.Sh(exitOnTerm(42))
	_, ends := n.Sh(exitOnTerm(43))
	_, dies := n.Sh(exitOnTerm(44))
	_, runs := n.Sh("sleep 1000")
	for _, id := range []string{stops, ends, dies} {
		ready(n, id)
	}
	events := follow(t, n)
	stop := func(id string, code int32) {
		t.Helper()
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		expectExact(t, n, id, code)
		n.Until("the end is published", func() bool { return events.stopped(id) })
	}
	n.Containerd.Signal(syscall.SIGSTOP)
	stop(stops, 42)
	if l, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(l.GetContainers()) != 4 {
		t.Errorf("%v %v", l, err)
	}
	removed := make(chan error, 1)
	go func() { // asked for now, it is done once containerd is back
		_, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		removed <- err
	}()
	n.Containerd.Signal(syscall.SIGCONT)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	n.Containerd.Signal(syscall.SIGSTOP)
	stop(ends, 43)
	n.Containerd.Kill(syscall.SIGKILL)
	n.Until("berth says that containerd is gone", func() bool { return !connected(t, n) })
	stop(dies, 44)
	if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
	n.StartContainerd()
	n.Until("berth is connected again", func() bool { return connected(t, n) })
	for id, code := range map[string]int32{ends: 43, dies: 44} {
		expectExact(t, n, id, code)
	}
	_, after := n.Sh("exit 7")
	node.ExpectExit(t, n.Ended(after), 7, "Error")
	if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
}

func connected(t *testing.T, n *node.Node) bool {
	t.Helper()
	st, err := n.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetStatus().GetConditions()[0].GetStatus()
}
