// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// quick makes lanes give up an attempt, and try again, sooner than a person would want.
var quick = []string{"--set", "lanes.backoff_max=1s"}

// withPause is quick, with a pause process in each pod, and withoutPause with none where nobody
// needs one.
var (
	withPause    = append([]string{"--set", "pod.pause=always"}, quick...)
	withoutPause = append([]string{"--set", "pod.pause=auto"}, quick...)
)

// PROPERTIES 1: an OCI runtime that takes a minute for each delete. The exit is visible within two
// seconds while it does, Stop returns, Remove waits, says for what it waits, and goes on by itself.
func TestTheTruthDoesNotWaitForADeleteThatTakesAMinute(t *testing.T) {
	both(t, nil, func(t *testing.T, n *node.Node, f *faults) {
		f.set("runc.delete", "stall")
		n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
			_, id := n.Sh("exec sleep 1000")
			s := n.Killed(id)
			node.ExpectExit(t, n.Container(id), 137, "Error")
			return s
		})
		_, ends := n.Sh("exit 42")
		node.ExpectExit(t, n.Ended(ends), 42, "Error")
		var runs string
		n.Within(2*time.Second, "a stop", func() node.Span {
			_, runs = n.Sh("exec sleep 1000") // the first process does not die of SIGTERM
			began := time.Now()
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		node.ExpectExit(t, n.Container(runs), 137, "Error")
		n.Until("the deletes stall", func() bool {
			return slices.Contains(f.hits("runc.delete"), ends) && slices.Contains(f.hits("runc.delete"), runs)
		})

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: runs})
		if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "still releasing task") || !strings.Contains(err.Error(), "goes on by itself") {
			t.Errorf("Remove does not say what it waits for: %v", err)
		}
		if text := timeline(t, n, runs); !strings.Contains(text, `"head":"release"`) {
			t.Errorf("the timeline does not say what it waits for: %s", text)
		}
		f.clear("runc.delete")
		n.Until("the removal that was asked for is done, and nobody asks again", func() bool { return gone(t, n, runs) })
	})
}

// PROPERTIES 3: the lanes of 50 containers are wedged in delete. Their own exits and those of
// others are visible all the same, those of 50 others within 200 ms, 20 of them in the pods of
// those that are wedged, while images come and the OOM killer is busy. Others are released and
// removed.
func TestFiftyWedgedDeletesDoNotDelayAnother(t *testing.T) {
	n, f := start(t, node.Options{})
	busy, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	eater := n.PodConfig()
	ends := node.ContainerConfig("eater", "sh", "-c", "while :; do tail /dev/zero; sleep 0.1; done")
	ends.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	eating := n.Pod(eater)
	n.Run(eating, eater, ends)
	wg.Go(func() {
		for busy.Err() == nil {
			if _, err := n.Import(busy, n.Dir+"/image.tar", ""); err != nil && busy.Err() == nil {
				t.Error(err)
			}
		}
	})

	var ids []string
	n.MostWithin(200*time.Millisecond, 0, "from the kill of a process to EXITED", func() []node.Span {
		f.clear("runc.delete") // what an earlier measurement has left
		n.RemoveAll(t.Context(), eating)
		var neighbours []string
		ids, neighbours = wedge(t, n, f)
		neighbours = append(neighbours, sideBySide(5, func(int) (strangers []string) {
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			for i := range 6 {
				strangers = append(strangers, n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("s", i), "sleep", "1000")))
			}
			return strangers
		})...)
		var spans []node.Span
		for _, id := range neighbours {
			spans = append(spans, n.Killed(id))
		}
		return spans
	})
	stop()
	wg.Wait()

	pod, stranger := n.Sh("exit 52")
	node.ExpectExit(t, n.Ended(stranger), 52, "Error")
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if text := timeline(t, n, id); !strings.Contains(text, `"lane"`) {
			t.Errorf("%s is not wedged: %s", id, text)
		}
	}
	f.clear("runc.delete")
}

// wedged is how many containers are wedged at a time.
const wedged = 50

// wedge wedges the lanes of containers in delete, five in each pod. Their own exits are visible all
// the same. Two others run in each pod.
func wedge(t *testing.T, n *node.Node, f *faults) (ids, neighbours []string) {
	t.Helper()
	const each, others = 5, 2
	made := sideBySide(wedged/each, func(p int) (made []string) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for c := range each {
			made = append(made, n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", c), "sh", "-c", exitOnTerm(p*each+c+1))))
		}
		for c := range others {
			made = append(made, n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("n", c), "sleep", "1000")))
		}
		return made
	})
	var limits []string
	for pod := range slices.Chunk(made, each+others) {
		ids, neighbours = append(ids, pod[:each]...), append(neighbours, pod[each:]...)
	}
	for _, id := range ids {
		limits = append(limits, "id "+id)
		ready(n, id)
	}
	f.set("runc.delete", "stall", limits...)
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
				t.Error(err)
			}
			node.ExpectExit(t, n.Container(id), int32(i+1), "Error")
		})
	}
	wg.Wait()
	n.Until("in each pod one is wedged, and the rest behind it", func() bool { return len(f.hits("runc.delete")) >= wedged/each })
	return ids, neighbours
}

// sideBySide calls f count times at the same time, and returns what the calls return, in the order
// of their numbers.
func sideBySide(count int, f func(i int) []string) []string {
	results := make([][]string, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { results[i] = f(i) })
	}
	wg.Wait()
	return slices.Concat(results...)
}

// A delete that fails is tried again, whoever fails in it: runc, the shim's task service, or the
// shim's answer, which is lost once it was done.
func TestADeleteThatFailsIsTriedUntilItWorks(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, f *faults) {
		for _, rule := range []struct{ step, action string }{
			{"runc.delete", "fail no such luck"}, {"runc.delete", "die"}, {"runc.delete", "fail-after too late"},
			{"shim.Delete", "fail no such luck"}, {"shim.Delete", "fail-after too late"},
		} {
			f.set(rule.step, rule.action, "times 2")
			pod, id := n.Sh("exit 42")
			node.ExpectExit(t, n.Ended(id), 42, "Error")
			n.Until(rule.step+" "+rule.action+": tried again", func() bool { return len(f.hits(rule.step)) == 2 })
			if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Errorf("%s %s: %v", rule.step, rule.action, err)
			}
			f.clear(rule.step)
		}
	})
}

// A mount that somebody keeps busy: the exit is visible, what cannot be unmounted is tried again,
// and in the end nothing is left.
func TestABusyRootFilesystemIsUnmountedOnceItIsFree(t *testing.T) {
	both(t, []string{"--set", "lanes.backoff_max=2m"}, func(t *testing.T, n *node.Node, _ *faults) {
		_, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		busy, err := os.Open(n.Bundle(id) + "/rootfs")
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Close()
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Container(id), 42, "Error")
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("removed with its root filesystem still mounted and busy: %v", err)
		}
		node.ExpectExit(t, n.Container(id), 42, "Error")
		if err := busy.Close(); err != nil {
			t.Fatal(err)
		}
		n.Until("the removal goes on by itself", func() bool { return gone(t, n, id) })
	})
}

// exitOnTerm is a script that ends with a code when it gets SIGTERM, once it is [ready].
func exitOnTerm(code int) string {
	return fmt.Sprintf("trap 'exit %d' TERM; echo ready; sleep 1000 & wait", code)
}

func ready(n *node.Node, id string) {
	n.Until("container "+id+" is ready", func() bool { return n.Log(id) != "" })
}

func gone(t *testing.T, n *node.Node, id string) bool {
	t.Helper()
	_, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return err != nil
}

func timeline(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	raw, err := n.Timeline(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
