// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// broken are the ways in which a step of making something does not work. All but the first leave
// something behind.
var broken = []string{"fail no such luck", "die", "fail-after too late", "die-after"}

// A pod whose shim cannot be made or started, or whose pause process: the error says why, nothing
// is left, and the same pod can be run once the cause is gone.
func TestAPodThatCannotBeMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	t.Run("without a process", func(t *testing.T) {
		cannotBeMade(t, withoutPause, "shim.bootstrap", "shim.CreateSandbox", "shim.StartSandbox")
	})
	t.Run("with a process", func(t *testing.T) {
		cannotBeMade(t, withPause, "runc.create", "runc.start", "shim.Create", "shim.Start", "shim.bootstrap")
	})
}

func cannotBeMade(t *testing.T, args []string, steps ...string) {
	t.Helper()
	both(t, args, func(t *testing.T, n *node.Node, f *faults) {
		for _, step := range steps {
			for _, action := range broken {
				cfg := n.PodConfig()
				f.set(step, action, "times 1")
				_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
				expectCause(t, step, action, err)
				if hits := f.hits(step); len(hits) != 1 {
					t.Errorf("%s %s: acted %d times", step, action, len(hits))
				}
				expectNoPod(t, n, step+" "+action)
				pod := n.Pod(cfg)
				if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// A container that cannot be started: the error says why, it is EXITED with StartError, nothing of
// its is left running, and its pod goes on.
func TestAContainerThatCannotBeStartedLeavesNothing(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, f *faults) {
		for _, step := range []string{"runc.create", "runc.start", "shim.Create", "shim.Start"} {
			for _, action := range broken {
				cfg := n.PodConfig()
				pod := n.Pod(cfg)
				id := n.Create(pod, cfg, node.ContainerConfig("c", "sh", "-c", "sleep 1000"))
				f.set(step, action, "times 1")
				_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
				expectCause(t, step, action, err)
				st := n.Ended(id)
				switch ran := strings.HasSuffix(step, "tart") && strings.Contains(action, "-after"); {
				case (ran || step == "shim.Start" && action == "die") && st.GetExitCode() == 137 && st.GetReason() == "Error":
					// It ran, or nobody knows whether it did, until the clean-up killed it.
				case st.GetExitCode() != 128 || st.GetReason() != "StartError":
					t.Errorf("%s %s: ended with %d %s", step, action, st.GetExitCode(), st.GetReason())
				}
				n.Until(step+" "+action+": no process is left", func() bool {
					return !slices.ContainsFunc(n.Processes(), func(c string) bool { return strings.HasPrefix(c, "sleep 1000") })
				})
				if !strings.HasPrefix(action, "die") || strings.HasPrefix(step, "runc") { // the shim lives
					other := n.Run(pod, cfg, node.ContainerConfig("other", "sh", "-c", "exit 3"))
					node.ExpectExit(t, n.Ended(other), 3, "Error")
				}
				if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
					t.Errorf("%s %s: %v", step, action, err)
				}
				f.clear(step)
			}
		}
	})
}

// PROPERTIES 16, and a network that cannot be had: a caller that gave up and asks again joins; what
// does not work says so; no address, namespace, interface or rule is left.
func TestAPodWhoseNetworkCannotBePlumbedLeavesNothing(t *testing.T) {
	t.Parallel()
	n, f := start(t, node.Options{Args: quick})
	for _, step := range []string{"bridge.ADD", "portmap.ADD"} {
		for _, action := range broken {
			cfg := n.PodConfig()
			cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: 30999, ContainerPort: 80}}
			f.set(step, action, "times 1")
			_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			expectCause(t, step, action, err)
			if err != nil && !strings.Contains(err.Error(), "network") {
				t.Errorf("%s %s: the error does not speak of the network: %v", step, action, err)
			}
			expectNoPod(t, n, step+" "+action)
			if left := n.Addresses(); len(left) > 0 {
				t.Errorf("%s %s: addresses are left: %v", step, action, left)
			}
			f.clear(step)
		}
	}
}

func TestARepeatedRunJoinsTheOneThatStallsInItsNetwork(t *testing.T) {
	t.Parallel()
	n, f := start(t, node.Options{Args: quick})
	f.set("bridge.ADD", "stall")
	cfg := n.PodConfig()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("got %v", err)
	}
	answers := make(chan string, 3)
	for range cap(answers) {
		go func() {
			resp, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				t.Error(err)
			}
			answers <- resp.GetPodSandboxId()
		}()
	}
	other := n.PodConfig()
	other.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	other.Hostname = "" // the host's, as its network
	n.Pod(other)        // it needs no network, and waits for nobody
	if got := f.hits("bridge.ADD"); len(got) != 1 {
		t.Errorf("the network was asked %d times", len(got))
	}
	f.clear("bridge.ADD")
	first := <-answers
	for range cap(answers) - 1 {
		if id := <-answers; id != first || id == "" {
			t.Errorf("%s and %s are one request's pods", first, id)
		}
	}
}

// The network's teardown fails, then stalls: the pod is NOTREADY at once, StopPodSandbox returns,
// and in the end all is given back.
func TestANetworkThatCannotBeTakenDownHoldsUpNobody(t *testing.T) {
	t.Parallel()
	n, f := start(t, node.Options{Args: quick})
	for _, step := range []string{"bridge.DEL", "portmap.DEL"} {
		for _, action := range append([]string{"stall"}, broken...) {
			cfg := n.PodConfig()
			cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: 30998, ContainerPort: 80}}
			pod := n.Pod(cfg)
			id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", exitOnTerm(42)))
			ready(n, id)
			if action == "stall" {
				f.set(step, action)
			} else {
				f.set(step, action, "times 2")
			}
			if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
			st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				t.Errorf("%s %s: %v %v", step, action, st, err)
			}
			if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				t.Errorf("%s %s: %v", step, action, st)
			}
			if action == "stall" {
				if len(n.Addresses()) == 0 {
					t.Errorf("%s is not in force: this shows nothing", step)
				}
				f.clear(step)
			}
			n.Until(step+" "+action+": the address is given back", func() bool { return len(n.Addresses()) == 0 })
			if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Errorf("%s %s: %v", step, action, err)
			}
			f.clear(step)
		}
	}
}

// expectCause expects an error that says what went wrong, as far as anybody could.
func expectCause(t *testing.T, step, action string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s %s: succeeded", step, action)
		return
	}
	if _, text, said := strings.Cut(action, " "); said && !strings.Contains(err.Error(), text) {
		t.Errorf("%s %s: the error does not say it: %v", step, action, err)
	}
	if strings.Contains(err.Error(), "undo:") {
		t.Errorf("%s %s: not undone at once: %v", step, action, err)
	}
}

func expectNoPod(t *testing.T, n *node.Node, after string) {
	t.Helper()
	pods, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.GetItems()) > 0 {
		t.Errorf("%s: %v %v", after, pods, err)
	}
}
