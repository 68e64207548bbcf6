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
var quick = []string{"--set", "lanes.attempt_timeout=1s", "--set", "lanes.backoff_min=100ms", "--set", "lanes.backoff_max=1s"}

// withPause is quick, with a pause process in each pod, and withoutPause with none where nobody needs
// one.
var (
	withPause    = append([]string{"--set", "pod.pause=always"}, quick...)
	withoutPause = append([]string{"--set", "pod.pause=auto"}, quick...)
)

// PROPERTIES 1: an OCI runtime that takes a minute for each delete. The exit is visible while it
// does, Stop returns, Remove waits, says for what it waits, and goes on by itself.
func TestTheTruthDoesNotWaitForADeleteThatTakesAMinute(t *testing.T) {
	both(t, nil, func(t *testing.T, n *node.Node, f *faults) {
		_, runs := n.Sh("sleep 1000")
		f.set("runc.delete", "stall")
		began := time.Now()
		_, ends := n.Sh("exit 42")
		node.ExpectExit(t, n.Ended(ends), 42, "Error")
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Container(runs), 137, "Error")
		if took := time.Since(began); took > 2*soon {
			t.Errorf("a start, an exit and a stop took %s", took)
		}
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
// others are visible all the same, and others are released and removed.
func TestFiftyWedgedDeletesDoNotDelayAnother(t *testing.T) {
	n, f := start(t, node.Options{})
	const pods, each = 10, 5
	ids := make([]string, pods*each)
	limits := make([]string, len(ids))
	var neighbour string
	for p := range pods {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for c := range each {
			i := p*each + c
			ids[i] = n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", c), "sh", "-c", exitOnTerm(i+1)))
			limits[i] = "id " + ids[i]
		}
		if p == 0 {
			neighbour = n.Run(pod, cfg, node.ContainerConfig("neighbour", "sh", "-c", exitOnTerm(51)))
		}
	}
	for _, id := range append(ids, neighbour) {
		ready(n, id)
	}
	f.set("runc.delete", "stall", limits...)
	var wg sync.WaitGroup
	stop := func(id string, code int32) {
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Error(err)
		}
		node.ExpectExit(t, n.Container(id), code, "Error")
	}
	for i, id := range ids {
		wg.Go(func() { stop(id, int32(i+1)) }) //nolint:gosec // small
	}
	wg.Wait()
	n.Until("in each pod one is wedged, and the rest behind it", func() bool { return len(f.hits("runc.delete")) >= pods })

	stop(neighbour, 51)
	pod, stranger := n.Sh("exit 52")
	node.ExpectExit(t, n.Ended(stranger), 52, "Error")
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	for i, id := range ids {
		node.ExpectExit(t, n.Container(id), int32(i+1), "Error") //nolint:gosec // small
		if text := timeline(t, n, id); !strings.Contains(text, `"lane"`) {
			t.Errorf("%s is not wedged: %s", id, text)
		}
	}
	f.clear("runc.delete")
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
	both(t, append([]string{"--set", "lanes.attempt_timeout=4s"}, quick[2:]...), func(t *testing.T, n *node.Node, _ *faults) {
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
	return string(raw)
}
