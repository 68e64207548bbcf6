// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// expectExact expects a code that only the kernel could report. Where it cannot, the code may be
// unknown, never another one.
func expectExact(t *testing.T, n *node.Node, id string, code int32) {
	t.Helper()
	st := n.Ended(id)
	if n.Exact() {
		node.ExpectExit(t, st, code, "Error")
	} else if st.GetExitCode() != code && (st.GetExitCode() != 255 || st.GetReason() != "Unknown") {
		t.Errorf("this kernel may not know the code, but %d %s was invented", st.GetExitCode(), st.GetReason())
	}
}

func killShim(t *testing.T, n *node.Node, pod string) {
	t.Helper()
	pid, ok := n.Shims()[pod]
	if !ok {
		t.Fatalf("no shim of pod %s was found", pod)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 5: the shim is killed before the exit. containerd's clean-up is held up, so that the
// process ends in its own way: its code is reported, and not what the clean-up would say.
func TestTheCodeSurvivesAShimKilledBeforeTheExit(t *testing.T) {
	bothOrders(t, quick, func(t *testing.T, n *node.Node, f *faults, between func()) {
		f.set("shim.cleanup", "stall")
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		between()
		killShim(t, n, pod)
		n.Until("containerd cleans up", func() bool { return len(f.hits("shim.cleanup")) > 0 })
		if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("a process that outlives its shim was reported as %v", st)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		expectExact(t, n, id, 42)
		f.clear("shim.cleanup")
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
	})
}

// The shim is killed, and containerd's clean-up kills what it left: 137 is the truth then, and a
// pod with a pause process is NOTREADY. A kernel that does not report codes shows them until the
// process is reaped; when berth was not as fast as that, there is only what containerd reports,
// which is the same whatever the process ended with. What was settled and released before keeps its
// code.
//
// PROPERTIES 76: why names the shim, also if it died while berth was away, with the containerd
// inside that cleans up later: "SIGKILL ended it", it said, "it came from within the pod".
func TestAKilledShimTakesItsPodWithIt(t *testing.T) {
	bothOrders(t, withPause, func(t *testing.T, n *node.Node, _ *faults, between func()) {
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		ended := n.Run(pod, podOf(t, n, pod), node.ContainerConfig("ended", "sh", "-c", "exit 43"))
		node.ExpectExit(t, n.Ended(ended), 43, "Error")
		n.Until("it is released", func() bool { return attempts(t, n, ended) == 0 })
		between()
		killShim(t, n, pod)
		expectExact(t, n, id, 137)
		n.Until("the pod is NOTREADY", func() bool {
			st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			return err == nil && st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		})
		node.ExpectExit(t, n.Container(ended), 43, "Error")
		named := func() {
			n.Until("the shim is named", func() bool {
				text, _ := n.Command("why", id).CombinedOutput()
				return strings.Contains(string(text), "The shim of its pod had died")
			})
		}
		if named(); n.Containerd != nil {
			return
		}
		pod, id = n.Sh(exitOnTerm(42))
		ready(n, id)
		shim := n.Shims()[pod]
		n.Berth.Kill(syscall.SIGKILL)
		if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.StartBerth()
		expectExact(t, n, id, 137)
		named()
	})
}

// The shim dies at the exit: when it is about to publish it, when it just has, and in the deletion
// that follows, before and after it was done, or while runc is at it.
func TestTheCodeSurvivesAShimThatDiesAtTheExit(t *testing.T) {
	bothOrders(t, quick, func(t *testing.T, n *node.Node, f *faults, between func()) {
		for _, rule := range []struct{ step, action string }{
			{"shim.exit-event", "die"}, {"shim.exit-event", "die-after"}, {"shim.Delete", "die"}, {"shim.Delete", "die-after"}, {"runc.delete", "stall"},
		} {
			pod, id := n.Sh(exitOnTerm(42))
			other := n.Run(pod, podOf(t, n, pod), node.ContainerConfig("other", "sh", "-c", exitOnTerm(43)))
			ready(n, id)
			ready(n, other)
			between()
			f.set(rule.step, rule.action, "id "+id, "times 1")
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
				t.Fatal(err)
			}
			expectExact(t, n, id, 42)
			n.Until(rule.step+" "+rule.action+" acted", func() bool { return len(f.hits(rule.step)) == 1 })
			if rule.step == "runc.delete" {
				killShim(t, n, pod)
				f.clear(rule.step)
			}
			node.ExpectExit(t, n.Ended(other), 137, "Error") // the clean-up after the shim kills it
			expectExact(t, n, id, 42)
			if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Errorf("%s %s: %v", rule.step, rule.action, err)
			}
			f.clear(rule.step)
		}
	})
}

// PROPERTIES 31: a pod without a process outlives its shim, also one that hangs and is killed then.
// The next container starts another shim.
func TestAPodWithoutAProcessOutlivesAKilledShim(t *testing.T) {
	bothOrders(t, withoutPause, func(t *testing.T, n *node.Node, _ *faults, between func()) {
		for _, stopped := range []bool{false, true} {
			pod, id := n.Sh(exitOnTerm(42))
			ready(n, id)
			between()
			if stopped {
				if err := syscall.Kill(n.Shims()[pod], syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			killShim(t, n, pod)
			n.Ended(id)
			for range 2 {
				other := n.Run(pod, podOf(t, n, pod), node.ContainerConfig(fmt.Sprint("other", others.Add(1)), "sh", "-c", "exit 43"))
				node.ExpectExit(t, n.Ended(other), 43, "Error")
			}
			st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Errorf("%v %v", st, err)
			}
			killShim(t, n, pod) // nobody has a task in it
			if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
			n.NoLeaks(t.Context())
		}
	})
}

// others numbers containers.
var others atomic.Int32

// PROPERTIES 2: nobody publishes the exit, which is visible within five seconds. With the kernel as
// witness nothing is lost; where it cannot speak, the shim's answer to containerd's Wait does;
// where that does not come either, the audit asks.
func TestAnExitWhoseEventIsSwallowedIsSeenWithoutARestart(t *testing.T) {
	t.Parallel()
	silent := map[string]string{"shim.exit-event": "swallow", "shim.Wait": "stall"}
	t.Run("kernel", func(t *testing.T) {
		both(t, nil, func(t *testing.T, n *node.Node, f *faults) { exitIsSeen(t, n, f, silent, true) })
	})
	t.Run("containerd", func(t *testing.T) {
		both(t, []string{"--set", "runtimes.runc.host_process=false"}, func(t *testing.T, n *node.Node, f *faults) {
			exitIsSeen(t, n, f, map[string]string{"shim.exit-event": "swallow"}, false) // Wait
			exitIsSeen(t, n, f, silent, false)                                          // the audit
		})
	})
}

// exitIsSeen expects that an exit is seen under the rules, by the kernel alone or not by the
// kernel.
func exitIsSeen(t *testing.T, n *node.Node, f *faults, rules map[string]string, kernel bool) {
	t.Helper()
	for step, action := range rules {
		f.set(step, action)
	}
	n.Within(5*time.Second, "from the kill of a process to EXITED", func() node.Span {
		_, id := n.Sh("exec sleep 1000")
		s := n.Killed(id)
		node.ExpectExit(t, n.Container(id), 137, "Error")
		return s
	})
	pod, id := n.Sh("exit 42")
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	n.Until("the event was swallowed", func() bool { return len(f.hits("shim.exit-event")) > 0 })
	spoke := map[string]bool{}
	history := n.History(id)
	for _, e := range history {
		if _, witness, ok := strings.Cut(e.Detail, "witness="); ok && e.Kind == "ExitReported" {
			spoke[witness] = true
		}
	}
	if len(spoke) == 0 || spoke["stream"] || spoke["kernel"] != kernel {
		t.Errorf("another witness spoke: %v\n%v", spoke, history)
	}
	for step := range rules {
		f.clear(step)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 50: after a restart of berth, each deletion in a pod of before started a shim and an OCI
// runtime to delete what was deleted already, since a containerd inside berth did not know any more
// that a script does that.
func TestAScriptCleansUpAfterPodsThatAreOlderThanBerth(t *testing.T) {
	args := append([]string{"--set", "tricks.cleanup_script=true"}, quick...)
	bothOrders(t, args, func(t *testing.T, n *node.Node, f *faults, between func()) {
		f.set("shim.cleanup", "stall 1ms") // which notes that the shim's program was asked
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		var ids []string
		for i := range 3 {
			ids = append(ids, n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", i), "sleep", "1000")))
		}
		between()
		for _, id := range ids {
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
		for _, id := range f.hits("shim.cleanup") {
			if slices.Contains(ids, id) {
				t.Errorf("the shim's program cleaned up after %s", id)
			}
		}
	})
}

// podOf is the configuration that a pod was made with, as far as containers need it.
func podOf(t *testing.T, n *node.Node, pod string) *runtimeapi.PodSandboxConfig {
	t.Helper()
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	return &runtimeapi.PodSandboxConfig{Metadata: st.GetStatus().GetMetadata()}
}
