// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// containerd hangs, then is killed, then comes back: berth stays, reading goes on being served,
// exits are reported by the kernel, and afterwards all goes on, also for what was asked meanwhile.
// A stopped containerd accepts connections and answers nothing.
//
// PROPERTIES 13.
func TestContainerdThatHangsThenDiesHoldsUpNoExit(t *testing.T) {
	t.Parallel()
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
	n.Until("berth says that containerd is gone", func() bool { return !n.Connected() })
	stop(dies, 44)
	if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
	n.StartContainerd()
	n.Until("berth is connected again", func() bool { return n.Connected() })
	for id, code := range map[string]int32{ends: 43, dies: 44} {
		expectExact(t, n, id, code)
	}
	_, after := n.Sh("exit 7")
	node.ExpectExit(t, n.Ended(after), 7, "Error")
	if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
}

// PROPERTIES 34: with another containerd that was away at the start, berth did not answer CRI for as
// long as that took, watched nothing, and needed up to half a minute more.
//
// berth comes up from its records within a second, whether nobody listens on containerd's socket or
// a containerd that is stopped does. What ended meanwhile and what ends now has its code. What needs
// containerd is refused with the reason, and goes on soon after containerd is there.
func TestBerthIsThereWhileContainerdIsNot(t *testing.T) {
	n, _ := start(t, node.Options{External: true, ServiceManager: true, Args: quick})
	_, before := n.Sh(exitOnTerm(42))
	_, after := n.Sh(exitOnTerm(43))
	pod, runs := n.Sh("sleep 1000")
	for _, id := range []string{before, after} {
		ready(n, id)
	}
	pids := map[string]int{before: n.Pid(before), after: n.Pid(after)}
	for round, how := range []string{"dead", "hung"} {
		if how == "dead" {
			n.Containerd.Kill(syscall.SIGKILL)
		} else {
			n.Containerd.Signal(syscall.SIGSTOP)
		}
		n.Within(time.Second, "the start of berth while containerd is "+how, func() node.Span {
			n.Berth.Kill(syscall.SIGKILL)
			if pid := pids[before]; pid != 0 {
				end(t, pid) // while no berth is there
				delete(pids, before)
			}
			began := time.Now()
			n.ServeBerth()
			if l, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(l.GetContainers()) != 3+round {
				t.Errorf("%v %v", l, err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		if n.Connected() {
			t.Error("berth says that pods can be made")
		}
		expectExact(t, n, before, 42)
		if pid := pids[after]; pid != 0 {
			end(t, pid)
			delete(pids, after)
		}
		expectExact(t, n, after, 43)
		if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%v", st)
		}
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: node.ContainerConfig("late", "true"), SandboxConfig: n.PodConfig()})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "containerd") {
			t.Errorf("a container was asked for: %v", err)
		}
		if how == "dead" {
			if l, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}); status.Code(err) != codes.Unavailable {
				t.Errorf("images that were not read were listed: %v %v", l, err)
			}
			n.StartContainerd()
		} else {
			n.Containerd.Signal(syscall.SIGCONT)
		}
		n.Until("berth is connected", n.Connected)
		_, works := n.Sh("exit 7")
		node.ExpectExit(t, n.Ended(works), 7, "Error")
	}
	for id, code := range map[string]int32{before: 42, after: 43} {
		expectExact(t, n, id, code)
	}
}

// end makes the program of exitOnTerm end.
func end(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}
