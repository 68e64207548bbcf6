// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 46: to a kubelet that is given berth's socket in the place of the one of containerd's CRI
// plug-in, and back, its pods are the ones that it had: none is made again, no restart is counted, and
// what ends afterwards is started again.
func TestAKubeletGoesOnWithAdoptedPods(t *testing.T) {
	for _, evented := range []bool{false, true} {
		t.Run(fmt.Sprint("evented ", evented), func(t *testing.T) { goesOn(t, start(t, node.Options{External: true}, evented)) })
	}
}

func goesOn(t *testing.T, k *kubelet) {
	k.process.Kill(syscall.SIGTERM)
	k.StartPlugin()
	k.useSocket(k.Dir+"/berth.sock", k.Dir+"/c/containerd.sock")
	k.add("web", "web")
	k.add("job", "job")
	k.add("crash", "crash")
	k.run()
	k.until("web", "ready", pod.ready)
	k.until("job", "over", func(p pod) bool { return p.Status.Phase == "Succeeded" })
	k.until("crash", "started again", func(p pod) bool { return p.only().RestartCount > 0 })
	restarts := k.same(nil)

	k.process.Kill(syscall.SIGTERM)
	k.PluginOff(func() {})
	if out, code := k.Adopt(); code != 0 {
		t.Fatalf("berth adopt ended with %d:\n%s", code, out)
	}
	k.StartBerth()
	k.useSocket(k.Dir+"/c/containerd.sock", k.Dir+"/berth.sock")
	k.run()
	k.until("web", "ready", pod.ready)
	restarts = k.same(restarts)
	if text, err := k.request("POST", "/run/default/web-node/web?cmd=echo%20berth"); err != nil || text != "berth\n" {
		t.Errorf("a command printed %q, %v", text, err)
	}

	k.process.Kill(syscall.SIGTERM)
	// What berth has started is not the plug-in's: the kubelet makes it again there.
	all, err := k.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": "crash-node"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.GetContainers() {
		if _, err := k.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: c.GetPodSandboxId()}); err != nil {
			t.Fatal(err)
		}
	}
	delete(restarts, "crash")
	k.Berth.Kill(syscall.SIGTERM)
	if out, code := k.Adopt("--back"); code != 0 {
		t.Fatalf("berth adopt --back ended with %d:\n%s", code, out)
	}
	k.PluginOn()
	k.useSocket(k.Dir+"/berth.sock", k.Dir+"/c/containerd.sock")
	k.run()
	k.until("web", "ready", pod.ready)
	k.same(restarts)
	k.remove("web")
	k.remove("job")
	k.remove("crash")
	k.gone()
	// The plug-in ends the calls of CNI's of a client that goes, and what they had not removed stays.
	k.Until("the pods are disconnected", func() bool { return len(k.PluginNetworks()) == 0 })
	k.process.Kill(syscall.SIGTERM)
	k.RemoveAll(t.Context())
}

// useSocket has the next kubelet use another runtime.
func (k *kubelet) useSocket(was, is string) {
	k.t.Helper()
	path := k.dir + "/config.yaml"
	b, err := os.ReadFile(path)
	if err != nil {
		k.t.Fatal(err)
	}
	next := bytes.ReplaceAll(b, []byte("unix://"+was+"\n"), []byte("unix://"+is+"\n"))
	if bytes.Equal(b, next) {
		k.t.Fatalf("the kubelet does not use %s", was)
	}
	if err := os.WriteFile(path, next, 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// kept is a container as the kubelet sees it.
type kept struct {
	id       string
	restarts int
}

// same returns the pods' containers, by the names of both, a while after the kubelet has started. Those
// that were there before are the same, but for containers that crash: of these the count goes on.
func (k *kubelet) same(before map[string]map[string]kept) map[string]map[string]kept {
	k.t.Helper()
	count := func(metrics, name string) (n float64) {
		for line := range strings.Lines(metrics) {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				n, _ = strconv.ParseFloat(strings.TrimSpace(value), 64)
			}
		}
		return n
	}
	k.Until("the kubelet has looked at its pods, several times where it reads no events", func() bool {
		metrics, err := k.get("/metrics")
		looked := count(metrics, "kubelet_pleg_relist_duration_seconds_count")
		synced := count(metrics, `kubelet_pod_worker_duration_seconds_count{operation_type="sync"}`)
		return err == nil && synced >= 3 && looked >= 1 && (k.evented || looked >= 8)
	})
	all, err := k.pods()
	if err != nil {
		k.t.Fatal(err)
	}
	now := map[string]map[string]kept{}
	for name, p := range all {
		now[name] = map[string]kept{}
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			now[name][c.Name] = kept{id, c.RestartCount}
		}
	}
	for name, containers := range before {
		for container, was := range containers {
			is := now[name][container]
			if name == "crash" && is.restarts >= was.restarts {
				continue
			}
			if is != was {
				k.t.Errorf("container %s of %s was %v, and is %v", container, name, was, is)
			}
		}
	}
	return now
}
