// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 31: a kubelet that measures containers itself has the figures of the network of a pod
// without a process. They go on when a container of the pod is restarted, when berth is killed, and
// when the pod gets another shim. Nothing that was made for them is left.
func TestTheNetworkOfAPodWithoutAProcessIsMeasured(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		k := start(t, node.Options{External: external, Args: []string{"--set", "pod.pause=auto", "--set", "runtimes.runc.shim_pods=1"}}, false)
		k.add("web", "web") // whose probes cause traffic
		id := strings.TrimPrefix(k.until("web", "ready", pod.ready).only().ContainerID, "berth://")
		sandbox := k.sandbox(id)
		st, err := k.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
		if err != nil || !strings.Contains(st.GetInfo()["info"], `"pid":0`) {
			t.Fatalf("the pod has a process: %s %v", st.GetInfo()["info"], err)
		}
		seen := k.received(t, 0)
		restart := func() {
			before := k.until("web", "ready", pod.ready).only().RestartCount
			if err := syscall.Kill(k.Pid(id), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			now := k.until("web", "ready again", func(p pod) bool { return p.ready() && p.only().RestartCount > before }).only()
			id = strings.TrimPrefix(now.ContainerID, "berth://")
		}
		restart()
		seen = k.received(t, seen)
		k.Berth.Kill(syscall.SIGKILL)
		k.StartBerth()
		seen = k.received(t, seen)
		shim := k.Shims()[sandbox]
		if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
			t.Fatalf("the shim, process %d: %v", shim, err)
		}
		k.until("web", "ready with another shim", func(p pod) bool {
			now := k.Shims()[sandbox]
			return p.ready() && now != 0 && now != shim
		})
		k.received(t, seen)
		if made := k.madeFor(t, sandbox); len(made) == 0 {
			t.Error("no cgroup has the ID of the sandbox")
		}
		k.remove("web")
		k.gone()
		if !k.eventually(func() bool { return len(k.madeFor(t, sandbox)) == 0 }) {
			t.Errorf("left behind: %q", k.madeFor(t, sandbox))
		}
	})
}

// sandbox is the sandbox of a container.
func (k *kubelet) sandbox(id string) string {
	k.t.Helper()
	list, err := k.ListContainers(k.t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}})
	if err != nil || len(list.GetContainers()) != 1 {
		k.t.Fatalf("container %s: %v %v", id, list, err)
	}
	return list.GetContainers()[0].GetPodSandboxId()
}

// received waits until cAdvisor's metrics and the kubelet's summary both have more bytes that the
// pod web has received than before, and returns what the metrics have.
func (k *kubelet) received(t *testing.T, before uint64) uint64 {
	t.Helper()
	metric := regexp.MustCompile(`(?m)^container_network_receive_bytes_total\{[^}]*interface="eth0"[^}]*pod="web-node"[^}]*\} ([0-9.e+]+)`)
	var now, summary uint64
	if !k.eventually(func() bool {
		text, err := k.get("/metrics/cadvisor")
		if err != nil {
			return false
		}
		m := metric.FindStringSubmatch(text)
		if m == nil {
			return false
		}
		bytes, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		now, summary = uint64(bytes), k.summary(t)
		return now > before && summary > before
	}) {
		t.Fatalf("the metrics have %d bytes received, the summary %d, want more than %d", now, summary, before)
	}
	return now
}

// summary is how many bytes the pod web has received, by the kubelet's summary; 0 if it does not
// say.
func (k *kubelet) summary(t *testing.T) uint64 {
	t.Helper()
	text, err := k.get("/stats/summary")
	if err != nil {
		return 0
	}
	var summary struct {
		Pods []struct {
			PodRef  struct{ Name string }
			Network struct{ RxBytes uint64 }
		}
	}
	if err := json.Unmarshal([]byte(text), &summary); err != nil {
		t.Fatal(err)
	}
	for _, p := range summary.Pods {
		if p.PodRef.Name == "web-node" {
			return p.Network.RxBytes
		}
	}
	return 0
}

// madeFor lists what was made so that cAdvisor finds a sandbox: cgroups with its ID in their names,
// and the record.
func (k *kubelet) madeFor(t *testing.T, sandbox string) []string {
	t.Helper()
	var found []string
	for _, dir := range append(node.Groups(k.group), k.Dir+"/run/cadvisor") {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.Contains(filepath.Base(path), sandbox) {
				found = append(found, path)
			}
			return nil // a directory may vanish during the walk
		})
	}
	return found
}
