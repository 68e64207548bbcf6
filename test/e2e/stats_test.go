// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
)

// PROPERTIES 30: a container that burns CPU, fills memory and writes files is measured as it is,
// also while its shim hangs, and by the next berth.
func TestStatsAreWhatAContainerUses(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		const limit, memory, disk = 128 << 20, 32 << 20, 3 << 20
		c := node.ContainerConfig("busy", "sh", "-c",
			"dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; dd if=/dev/zero of=/dev/shm/used bs=1M count=32 2>/dev/null; sync; echo filled; while :; do :; done")
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: limit}
		id := n.Run(pod, cfg, c)
		n.Until("the memory is filled", func() bool { return strings.Contains(n.Log(id), "filled") })
		shims := n.Shims()
		defer signalAll(t, shims, syscall.SIGCONT)
		signalAll(t, shims, syscall.SIGSTOP)
		get := func() *runtimeapi.ContainerStats {
			resp, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStats()
		}
		first := get()
		n.Until("it used CPU time at a rate", func() bool {
			cpu := get().GetCpu()
			return cpu.GetUsageCoreNanoSeconds().GetValue() > first.GetCpu().GetUsageCoreNanoSeconds().GetValue() && cpu.GetUsageNanoCores().GetValue() > 0
		})
		st := get()
		m := st.GetMemory()
		if got := m.GetWorkingSetBytes().GetValue(); got < memory || got > limit {
			t.Errorf("the working set is %d", got)
		}
		if m.GetAvailableBytes().GetValue()+m.GetWorkingSetBytes().GetValue() != limit || m.GetPageFaults().GetValue() == 0 {
			t.Errorf("%v", m)
		}
		n.Until("the writable layer was sampled", func() bool { return get().GetWritableLayer().GetUsedBytes().GetValue() >= disk })
		list, err := n.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
		if err != nil || len(list.GetStats()) != 1 {
			t.Fatal(list, err)
		}
		l := list.GetStats()[0].GetLinux()
		if l.GetMemory().GetWorkingSetBytes().GetValue() < memory || l.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 ||
			l.GetProcess().GetProcessCount().GetValue() == 0 || len(l.GetContainers()) != 1 {
			t.Errorf("%v", l)
		}
		if eth := l.GetNetwork().GetDefaultInterface(); eth.GetName() != "eth0" || l.GetNetwork().GetTimestamp() == 0 {
			t.Errorf("%v", l.GetNetwork())
		}
		names := metricNames(t, n, pod, id)
		for _, name := range []string{
			"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_network_receive_bytes_total",
			"container_processes", "container_threads", "container_sockets", "container_file_descriptors", "container_fs_usage_bytes",
			"container_fs_inodes_free", "container_fs_limit_bytes", "container_oom_events_total", "container_spec_memory_swap_limit_bytes",
		} {
			if !names[name] {
				t.Errorf("there is no %s", name)
			}
		}
		signalAll(t, shims, syscall.SIGCONT)
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		if got := get(); got.GetCpu().GetUsageCoreNanoSeconds().GetValue() < st.GetCpu().GetUsageCoreNanoSeconds().GetValue() {
			t.Errorf("after a restart: %v, before: %v", got, st)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if st := get(); st.GetCpu() != nil || st.GetMemory() != nil || st.GetAttributes().GetId() != id {
			t.Errorf("ended: %v", st)
		}
		if all, err := n.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{}); err != nil || len(all.GetStats()) != 0 {
			t.Errorf("%v %v", all, err)
		}
		if _, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: "feedbeef"}); status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		if _, err := n.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{}); status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
	})
}

// 60 MiB in a volume of an image counted as 24 KiB: the volume is no part of the writable layer, and the
// kubelet neither evicted such a pod nor held it to its limit of ephemeral storage.
func TestWhatAContainerWritesIntoAVolumeOfItsImageCounts(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		base, err := testimage.BusyboxLayer()
		if err != nil {
			t.Fatal(err)
		}
		img, err := testimage.Image(v1.Config{Volumes: map[string]struct{}{"/var/data": {}}}, base)
		if err != nil {
			t.Fatal(err)
		}
		const name, size = "localhost/volume:latest", 12 << 20
		archive := filepath.Join(n.Dir, "volume.tar")
		if err := testimage.WriteOCIArchive(archive, name, img); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Import(t.Context(), archive, ""); err != nil {
			t.Fatal(err)
		}
		cfg := n.PodConfig()
		c := node.ContainerConfig("c", "sh", "-c", "dd if=/dev/zero of=/var/data/f bs=1M count=12 2>/dev/null; sync; exec sleep 1000")
		c.Image.Image = name
		id := n.Run(n.Pod(cfg), cfg, c)
		n.Until("the volume is counted", func() bool {
			resp, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStats().GetWritableLayer().GetUsedBytes().GetValue() >= size
		})
	})
}

// signalAll signals processes, some of which may have ended. After SIGSTOP it waits until they have
// stopped: a signal takes a moment to reach every thread.
func signalAll(t *testing.T, pids map[string]int, sig syscall.Signal) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	if sig != syscall.SIGSTOP {
		return
	}
	for name, pid := range pids {
		for range 3000 {
			if stopped(t, pid) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !stopped(t, pid) {
			t.Fatalf("%s does not stop", name)
		}
	}
}

// stopped reports whether no thread of a process runs: each is stopped, or the process has ended.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range threads {
		b, err := os.ReadFile(f)
		if err == nil && !bytes.Contains(b, []byte(") T ")) && !bytes.Contains(b, []byte(") Z ")) {
			return false
		}
	}
	return true
}

// metricNames are the metrics of a pod and its container that are described, each with its labels.
func metricNames(t *testing.T, n *node.Node, pod, id string) map[string]bool {
	t.Helper()
	resp, err := n.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]int{}
	for _, d := range resp.GetDescriptors() {
		described[d.GetName()] = len(d.GetLabelKeys())
	}
	list, err := n.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil || len(list.GetPodMetrics()) != 1 || list.GetPodMetrics()[0].GetPodSandboxId() != pod ||
		len(list.GetPodMetrics()[0].GetContainerMetrics()) != 1 || list.GetPodMetrics()[0].GetContainerMetrics()[0].GetContainerId() != id {
		t.Fatal(list, err)
	}
	names := map[string]bool{}
	p := list.GetPodMetrics()[0]
	for _, m := range append(p.GetMetrics(), p.GetContainerMetrics()[0].GetMetrics()...) {
		names[m.GetName()] = true
		if len(m.GetLabelValues()) != described[m.GetName()] {
			t.Errorf("%v has not the labels of its descriptor", m)
		}
	}
	return names
}
