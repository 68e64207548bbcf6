// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// PROPERTIES 4 and 8: a pod's sandbox ends and the kubelet makes another, the first is removed, and
// berth is killed again and again. What berth replays each time does not make the kubelet forget
// the pod, whose containers it would make anew; nor does any restart cost it more than the one
// stream that broke: after five the kubelet does without events for good.
func TestARecreatedSandboxOutlivesBerth(t *testing.T) {
	t.Parallel()
	k := start(t, node.Options{ServiceManager: true}, true)
	g := k.pleg()
	k.add("shared", "shared")
	first := k.until("shared", "running", running).only()
	old := k.sandboxes("shared")
	if len(old) != 1 {
		t.Fatalf("the sandboxes of the pod are %v", old)
	}
	if err := syscall.Kill(k.SandboxPid(old[0].GetId()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	before := k.until("shared", "running in another sandbox", func(p pod) bool {
		return running(p) && p.only().ContainerID != first.ContainerID
	}).only()
	if _, err := k.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: old[0].GetId()}); err != nil {
		t.Fatal(err)
	}
	now := k.sandboxes("shared")
	if len(now) != 1 || now[0].GetId() == old[0].GetId() {
		t.Fatalf("the sandboxes of the pod are %v", now)
	}

	const restarts = 3
	for i := range restarts + 1 {
		if i > 0 {
			k.Berth.Kill(syscall.SIGKILL)
			k.StartBerth()
		}
		// The end of a pod that runs now says that everything before it was read.
		name := fmt.Sprint("job", i)
		k.add("job", name)
		k.until(name, "finished", func(p pod) bool { return p.Status.Phase == "Succeeded" })
		job := k.sandboxes(name)[0].GetMetadata().GetUid()
		if !k.eventually(func() bool { return g.ask(job).Seen["ContainerDied"] > 0 }) {
			t.Fatalf("the end of %s is not seen in the events: %+v", name, g.ask(job))
		}
		known := g.ask(now[0].GetMetadata().GetUid())
		if state := known.Sandboxes[now[0].GetId()]; state != "SANDBOX_READY" {
			t.Errorf("after %d restarts the sandbox is %q in the kubelet's cache: %+v", i, state, known)
		}
		id := strings.TrimPrefix(before.ContainerID, "berth://")
		if state := known.Containers[id]; state != "running" {
			t.Errorf("after %d restarts the container is %q in the kubelet's cache: %+v", i, state, known)
		}
		if known.Connections != i+1 || known.Errors != i {
			t.Errorf("after %d restarts the stream was opened %d times and ended %d times", i, known.Connections, known.Errors)
		}
	}
	k.readsEvents(restarts)
	after := k.until("shared", "running", running).only()
	if after.ContainerID != before.ContainerID || after.RestartCount != before.RestartCount {
		t.Errorf("was %+v, is %+v", before, after)
	}
}

func running(p pod) bool { return p.Status.Phase == "Running" && p.only().State.Running != nil }

// readsEvents fails the test unless the kubelet reads berth's events, and lost them as often as
// berth was restarted.
func (k *kubelet) readsEvents(restarts int) {
	k.t.Helper()
	text, err := k.get("/metrics")
	if err != nil {
		k.t.Fatal(err)
	}
	for name, want := range map[string]int{
		"kubelet_evented_pleg_connection_success_count": restarts + 1,
		"kubelet_evented_pleg_connection_error_count":   restarts,
	} {
		got := -1
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name {
				if got, err = strconv.Atoi(f[1]); err != nil {
					k.t.Fatal(err)
				}
			}
		}
		if got != want {
			k.t.Errorf("after %d restarts of berth %s is %d, want %d", restarts, name, got, want)
		}
	}
}

// sandboxes are those that berth has of a pod.
func (k *kubelet) sandboxes(name string) []*runtimeapi.PodSandbox {
	k.t.Helper()
	resp, err := k.ListPodSandbox(k.t.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": name + "-node"}},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return resp.GetItems()
}

// generator is the kubelet's own reader of events (tools/lab/kubelet/pleg), which lets its cache be
// looked at.
type generator struct {
	t       testing.TB
	in      io.Writer
	answers *bufio.Scanner
}

// known is what the kubelet's cache has of a pod, and what came of the events.
type known struct {
	Sandboxes, Containers map[string]string // states, by ID
	Connections, Errors   int
	Seen                  map[string]int
}

// pleg starts a generator, which ends with the test.
func (k *kubelet) pleg() *generator {
	k.t.Helper()
	dir := k.dir + "/pleg"
	if err := os.Mkdir(dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	cmd := command.Within(k.t, 20*time.Minute, k.Module+"/build/bin/pleg", k.Dir+"/berth.sock", dir)
	var log strings.Builder
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatalf("%v: run `make test-kubelet`", err)
	}
	k.t.Cleanup(func() {
		_ = in.Close() // it ends with its input
		if err := cmd.Wait(); err != nil {
			k.t.Errorf("the kubelet's PLEG: %v\n%s", err, log.String())
		}
	})
	return &generator{t: k.t, in: in, answers: bufio.NewScanner(out)}
}

// ask asks what the kubelet's cache has of a pod.
func (g *generator) ask(uid string) known {
	g.t.Helper()
	if _, err := fmt.Fprintln(g.in, uid); err != nil {
		g.t.Fatal(err)
	}
	var k known
	if !g.answers.Scan() {
		g.t.Fatalf("the kubelet's PLEG does not answer: %v", g.answers.Err())
	}
	if err := json.Unmarshal(g.answers.Bytes(), &k); err != nil {
		g.t.Fatal(err)
	}
	return k
}
