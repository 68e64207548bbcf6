// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/history/why"
	"berth/internal/host/cgroup"
	"berth/test/node"
)

// both runs a test with a kubelet that reads berth's events and statistics and with one that does not,
// or with one of them: see [node.Pick]. Where it reads events, a service manager keeps berth's socket,
// without which a restart of berth would cost the kubelet several of the five streams after which it
// does without events.
func both(t *testing.T, f func(t *testing.T, k *kubelet)) {
	t.Helper()
	for _, evented := range node.Pick(t, "kubelet's way to see changes", false, true) {
		t.Run(fmt.Sprint("evented ", evented), func(t *testing.T) { f(t, start(t, node.Options{ServiceManager: evented}, evented)) })
	}
}

// An init container comes before a sidecar and that before the container; probes are commands, HTTP
// and TCP; hooks run; volumes and limits are there; logs, statistics and commands are passed on.
func TestAPodIsServed(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *kubelet) {
		k.add("web", "web")
		p := k.until("web", "ready", pod.ready)
		if c := p.only(); c.RestartCount > 0 {
			t.Errorf("%+v", c)
		}
		if init := p.Status.InitContainerStatuses; len(init) != 2 || init[0].State.Terminated == nil || init[0].State.Terminated.Reason != "Completed" || !init[1].Ready {
			t.Errorf("%+v", init)
		}
		// What a container that runs has written is in its log soon, and not at once.
		log := func() string { text, _ := k.get("/containerLogs/default/web-node/web"); return text }
		if !k.eventually(func() bool { return log() == "it serves\n" }) {
			t.Errorf("its log is %q", log())
		}
		if text, err := k.request("POST", "/run/default/web-node/web?cmd=cat%20/www/index.html"); err != nil || text != "made by init\n" {
			t.Errorf("a command printed %q, %v", text, err)
		}
		limit := "/sys/fs/cgroup/memory/memory.limit_in_bytes"
		if cgroup.V2() {
			limit = "/sys/fs/cgroup/memory.max"
		}
		if text, err := k.request("POST", "/run/default/web-node/web?cmd=cat%20"+limit); err != nil || text != "67108864\n" {
			t.Errorf("the limit of the memory is %q, want 64 MiB: %v", text, err)
		}
		if !k.eventually(func() bool { return k.measured("web", "web") }) {
			t.Error("the statistics have no memory of the container")
		}
		k.untilMetric(t, "container_memory_working_set_bytes", "web", "[1-9]")
		k.untilMetric(t, "container_cpu_usage_seconds_total", "web", "[0-9]") // CRI has whole seconds
		id := strings.TrimPrefix(p.only().ContainerID, "berth://")
		if got := k.Container(id).GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("container %s is %s", id, got)
		}
		k.remove("web")
		k.gone()
		if b, err := os.ReadFile(k.dir + "/web/hooks"); err != nil || string(b) != "started\nstops\n" {
			t.Errorf("hooks wrote %q, %v", b, err)
		}
	})
}

// gone waits until no pod runs any more.
func (k *kubelet) gone() {
	k.t.Helper()
	if !k.eventually(k.idle) {
		k.t.Error("pods still run")
	}
}

// measured reports whether the kubelet's summary has the memory of a container.
func (k *kubelet) measured(name, container string) bool {
	text, err := k.get("/stats/summary")
	if err != nil {
		return false
	}
	var summary struct {
		Pods []struct {
			PodRef     struct{ Name string }
			Containers []struct {
				Name   string
				Memory struct{ WorkingSetBytes uint64 }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &summary); err != nil {
		k.t.Fatal(err)
	}
	for _, p := range summary.Pods {
		for _, c := range p.Containers {
			if p.PodRef.Name == name+"-node" && c.Name == container && c.Memory.WorkingSetBytes > 0 {
				return true
			}
		}
	}
	return false
}

// Codes, reasons and messages of ends are those that happened, and the kubelet acts on them.
func TestEndsAreReported(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *kubelet) {
		for _, name := range []string{"crash", "sick", "oom", "job"} {
			k.add(name, name)
		}
		p := k.until("job", "finished", func(p pod) bool { return p.Status.Phase == "Succeeded" })
		if end := p.only().State.Terminated; end == nil || end.ExitCode != 0 || end.Reason != "Completed" {
			t.Errorf("job: %+v", end)
		}
		p = k.until("oom", "finished", func(p pod) bool { return p.Status.Phase == "Failed" })
		if end := p.only().State.Terminated; end == nil || end.ExitCode != 137 || end.Reason != "OOMKilled" {
			t.Errorf("oom: %+v", end)
		}
		p = k.until("crash", "in a crash loop", func(p pod) bool {
			w := p.only().State.Waiting
			return p.only().RestartCount >= 2 && w != nil && w.Reason == "CrashLoopBackOff"
		})
		if end := p.only().LastState.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" || end.Message != "because\n" {
			t.Errorf("crash: %+v", end)
		}
		p = k.until("sick", "started again", func(p pod) bool { return p.only().RestartCount >= 1 && p.only().LastState.Terminated != nil })
		if end := p.only().LastState.Terminated; end.ExitCode != 137 {
			t.Errorf("sick: %+v", end)
		}
		for name, want := range map[string][]why.Cause{
			"job":   {why.Completed},
			"oom":   {why.OOMOfPod, why.OOMOfContainer}, // the two limits are the same
			"crash": {why.Failed},
			"sick":  {why.Stopped}, // by the kubelet, for its probe
		} {
			// One that crashes may have ended again in this instant, which is not on record yet.
			k.Until(fmt.Sprintf("berth why %s-node has the cause %v", name, want), func() bool {
				r, err := k.Client.Node.Why(t.Context(), &berthv1.WhyRequest{Id: name + "-node"})
				return err == nil && slices.Contains(want, why.Cause(r.GetCause()))
			})
		}
		if text, err := k.get("/containerLogs/default/job-node/job"); err != nil || text != "out\nerr\n" && text != "err\nout\n" {
			t.Errorf("log %q, %v", text, err)
		}
	})
}

// PROPERTIES 4: pods go on while the kubelet is killed and started again, and while berth is.
func TestPodsOutliveTheKubeletAndBerth(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *kubelet) {
		k.add("web", "web")
		before := k.until("web", "ready", pod.ready).only()
		k.process.Kill(syscall.SIGKILL)
		k.run()
		k.until("web", "ready", pod.ready)
		k.Berth.Kill(syscall.SIGKILL)
		k.StartBerth()
		k.add("job", "job") // what follows is about a kubelet that has noticed
		k.until("job", "finished", func(p pod) bool { return p.Status.Phase == "Succeeded" })
		after := k.until("web", "ready", pod.ready).only()
		if after.ContainerID != before.ContainerID || after.RestartCount > 0 {
			t.Errorf("was %+v, is %+v", before, after)
		}
		if k.evented {
			k.readsEvents(1)
		}
	})
}

func TestThirtyPodsOfAKubelet(t *testing.T) {
	both(t, func(t *testing.T, k *kubelet) {
		const count = 30
		for i := range count {
			k.add("sick", fmt.Sprint("sick", i))
		}
		for i := range count {
			k.until(fmt.Sprint("sick", i), "running", func(p pod) bool { return p.Status.Phase == "Running" })
		}
		for i := range count {
			k.remove(fmt.Sprint("sick", i))
		}
		k.gone()
	})
}
