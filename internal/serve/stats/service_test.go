// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
)

// both runs a test on cgroup v1 and on v2, in virtual time.
func both(t *testing.T, f func(t *testing.T, n *node)) {
	for _, v2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("cgroup v%d", map[bool]int{false: 1, true: 2}[v2]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, newNode(t, v2)) })
		})
	}
}

// start runs the service until the test ends.
func start(t *testing.T, n *node) *Service {
	s := n.service()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return s
}

func TestStatsOfAContainer(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.pod("p1", "k8s.io", "")
		n.container("p1", "c1", "k8s.io", 6e9)
		s := start(t, n)
		time.Sleep(10 * time.Second)
		n.group("k8s.io/c1", 16e9) // it used one core
		now := time.Now()
		got, err := s.ContainerStats(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		at := now.UnixNano()
		want := &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Id:          "c1",
				Metadata:    &runtimeapi.ContainerMetadata{Name: "name-c1"},
				Labels:      map[string]string{"app": "p1"},
				Annotations: map[string]string{"note": "c1"},
			},
			Cpu: &runtimeapi.CpuUsage{
				Timestamp:            at,
				UsageCoreNanoSeconds: value(16e9),
				UsageNanoCores:       value(1e9),
			},
			Memory: &runtimeapi.MemoryUsage{
				Timestamp:       at,
				WorkingSetBytes: value(40 * mib),
				AvailableBytes:  value(60 * mib),
				UsageBytes:      value(60 * mib),
				RssBytes:        value(30 * mib),
				PageFaults:      value(1000),
				MajorPageFaults: value(10),
			},
			WritableLayer: &runtimeapi.FilesystemUsage{
				Timestamp:  now.Add(-10 * time.Second).UnixNano(), // of the sample
				FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: n.mount},
				UsedBytes:  value(4096),
				InodesUsed: value(3),
			},
			Swap: &runtimeapi.SwapUsage{
				Timestamp:          at,
				SwapUsageBytes:     value(5 * mib),
				SwapAvailableBytes: value(3 * mib),
			},
		}
		if n.v2 {
			psi := func() *runtimeapi.PsiStats {
				return &runtimeapi.PsiStats{
					Some: &runtimeapi.PsiData{Total: 5e9, Avg10: 1.5, Avg60: 2.5, Avg300: 3.5},
					Full: &runtimeapi.PsiData{Total: 2e9},
				}
			}
			want.Cpu.Psi, want.Memory.Psi = psi(), psi()
			want.Io = &runtimeapi.IoUsage{Timestamp: at, Psi: psi()}
		}
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Error(d)
		}
	})
}

// shimsOf answers for shims: "" hangs.
type shimsOf map[string]pod.TaskUsage

func (s shimsOf) TaskUsage(ctx context.Context, id string) (pod.TaskUsage, error) {
	u, ok := s[id]
	if !ok {
		<-ctx.Done()
		return u, ctx.Err()
	}
	return u, nil
}

// PROPERTIES 62: a container's statistics were absent if its processes are behind gVisor's kernel,
// although its shim knows them. A shim that hangs is left out, asked once, and keeps no other from
// its figures.
func TestTheShimOfAGuestIsAskedForItsUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, true)
		n.pod("p1", "k8s.io", "")
		for _, id := range []string{"c1", "c2", "c3"} {
			n.container("p1", id, "k8s.io", 0)
			target := n.targets[id]
			target.Handler = pod.Handler{Name: "runsc"}
			n.targets[id] = target
		}
		shims := shimsOf{"c1": {CPU: 5e9, Memory: 60 << 20, MemoryLimit: 100 << 20, InactiveFile: 20 << 20}, "c2": {}}
		s := New(Config{Pods: n, Layers: n, Mountpoint: func() string { return "" }, Cgroups: n.mount, Unified: true, Shims: shims})
		for range 2 { // c3 is asked once
			began := time.Now()
			list, err := s.ListContainerStats(t.Context(), nil)
			if took := time.Since(began); err != nil || len(list) != 3 || took > 2*guestPatience {
				t.Fatal(list, err, took)
			}
			c1, m := list[0], list[0].GetMemory()
			if c1.GetCpu().GetUsageCoreNanoSeconds().GetValue() != 5e9 || m.GetWorkingSetBytes().GetValue() != 40<<20 || m.GetAvailableBytes().GetValue() != 60<<20 ||
				m.GetRssBytes() != nil || m.GetPageFaults() != nil || c1.GetSwap() != nil {
				t.Errorf("c1: %v", c1)
			}
			for _, c := range list[1:] {
				if c.GetCpu() != nil || c.GetMemory() != nil {
					t.Errorf("%s has a usage that its shim did not say: %v", c.GetAttributes().GetId(), c)
				}
			}
		}
		time.Sleep(guestTimeout) // the question to c3 ends, and nothing is left
	})
}

// PROPERTIES 62: the cgroup of a container whose processes are in a virtual machine, or behind
// gVisor's kernel, is empty: it was reported to use nothing, by every way to ask. Its pod uses what
// the cgroup of the pod says, in which the machine is, and if it has none of its own that is not
// known.
func TestAContainerInAMachineHasNoUsageOfZero(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.pod("p1", "kubepods/pod1", "/kubepods/pod1")
		n.container("p1", "c1", "kubepods/pod1", 0)
		n.group("kubepods/pod1", 7e9)
		n.pod("p2", "k8s.io", "")
		n.container("p2", "c2", "k8s.io", 0)
		for id, target := range n.targets {
			target.Handler = pod.Handler{Name: "runsc"}
			n.targets[id] = target
		}
		s := start(t, n)
		time.Sleep(time.Minute) // the background samples as well
		containers, err := s.ListContainerStats(t.Context(), nil)
		if err != nil || len(containers) != 2 {
			t.Fatal(containers, err)
		}
		for _, c := range containers {
			if c.GetCpu() != nil || c.GetMemory() != nil || c.GetSwap() != nil || c.GetIo() != nil || c.GetWritableLayer() == nil {
				t.Errorf("%s has a usage that was not measured, or lacks its layer: %v", c.GetAttributes().GetId(), c)
			}
		}
		pods, err := s.ListPodSandboxStats(t.Context(), nil)
		if err != nil || len(pods) != 2 {
			t.Fatal(pods, err)
		}
		for _, p := range pods {
			known := p.GetAttributes().GetId() == "p1"
			l := p.GetLinux()
			if (l.GetCpu() != nil) != known || (l.GetMemory() != nil) != known || l.GetProcess() != nil || l.GetNetwork() == nil {
				t.Errorf("pod %s: %v", p.GetAttributes().GetId(), l)
			}
			if known && l.GetCpu().GetUsageCoreNanoSeconds().GetValue() != 7e9 {
				t.Errorf("pod p1 does not have the usage of its cgroup: %v", l.GetCpu())
			}
		}
		metrics, err := s.ListPodSandboxMetrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range metrics {
			for _, c := range p.GetContainerMetrics() {
				if len(c.GetMetrics()) > 0 {
					t.Errorf("container %s has metrics of a cgroup that is not where it is: %v", c.GetContainerId(), c.GetMetrics()[0])
				}
			}
			for _, m := range p.GetMetrics() {
				if p.GetPodSandboxId() == "p2" && strings.HasPrefix(m.GetName(), "container_cpu") {
					t.Errorf("pod p2 has the metric %v", m)
				}
			}
		}
	})
}

// PROPERTIES 30: a container that ended has attributes and no usage, instead of a usage of zero.
func TestAContainerThatEndedHasNoUsage(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.pod("p1", "k8s.io", "")
		n.container("p1", "c1", "k8s.io", 6e9)
		n.container("p1", "c2", "k8s.io", 6e9)
		s := start(t, n)
		time.Sleep(time.Second)
		n.exit("c1", "k8s.io/c1")
		list, err := s.ListContainerStats(t.Context(), nil)
		if err != nil || len(list) != 1 || list[0].GetAttributes().GetId() != "c2" {
			t.Errorf("%v %v", list, err)
		}
		st, err := s.ContainerStats(t.Context(), "c1")
		if err != nil || st.GetAttributes().GetId() != "c1" || st.GetCpu() != nil || st.GetMemory() != nil {
			t.Errorf("%v %v", st, err)
		}
		n.remove("k8s.io/c2") // the controller has not noticed yet: there are no zeros
		st, err = s.ContainerStats(t.Context(), "c2")
		if err != nil || st.GetCpu() != nil || st.GetMemory() != nil || st.GetSwap() != nil {
			t.Errorf("%v %v", st, err)
		}
	})
}

func TestListsAreFiltered(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		for _, p := range []string{"p1", "p2"} {
			n.pod(p, "k8s.io", "")
			n.container(p, "c"+p, "k8s.io", 1)
		}
		s := n.service()
		for _, tt := range []struct {
			filter *runtimeapi.ContainerStatsFilter
			want   []string
		}{
			{nil, []string{"cp1", "cp2"}},
			{&runtimeapi.ContainerStatsFilter{Id: "cp2"}, []string{"cp2"}},
			{&runtimeapi.ContainerStatsFilter{PodSandboxId: "p1"}, []string{"cp1"}},
			{&runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"app": "p2"}}, []string{"cp2"}},
			{&runtimeapi.ContainerStatsFilter{PodSandboxId: "p1", LabelSelector: map[string]string{"app": "p2"}}, nil},
		} {
			list, err := s.ListContainerStats(t.Context(), tt.filter)
			var got []string
			for _, c := range list {
				got = append(got, c.GetAttributes().GetId())
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%v: %v %v", tt.filter, got, err)
			}
		}
		pods, err := s.ListPodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"app": "p2"}})
		if err != nil || len(pods) != 1 || pods[0].GetAttributes().GetId() != "p2" || len(pods[0].GetLinux().GetContainers()) != 1 {
			t.Errorf("%v %v", pods, err)
		}
	})
}

func TestWhatDoesNotExistIsNotFound(t *testing.T) {
	n := newNode(t, true)
	n.pod("p1", "k8s.io", "")
	n.pod("p2", "k8s.io", "")
	s := n.service()
	for id, is := range map[string]func(error) bool{
		"":   errdefs.IsInvalidArgument,
		"x":  errdefs.IsNotFound,
		"p":  errdefs.IsInvalidArgument, // two have it
		"p1": func(err error) bool { return err == nil },
	} {
		if _, err := s.PodSandboxStats(t.Context(), id); !is(err) {
			t.Errorf("sandbox %q: %v", id, err)
		}
	}
	for id, is := range map[string]func(error) bool{
		"":   errdefs.IsInvalidArgument,
		"p1": errdefs.IsNotFound, // a sandbox is not a container
	} {
		if _, err := s.ContainerStats(t.Context(), id); !is(err) {
			t.Errorf("container %q: %v", id, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ListPodSandboxStats(ctx, nil); err == nil {
		t.Error("a call that was given up succeeded")
	}
}

func TestStatsOfAPod(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		// The kubelet's pod has a cgroup of its own. The other two share one with each other.
		n.group("kubepods/pod1", 50e9)
		n.pod("own", "kubepods/pod1", "/kubepods/pod1")
		n.container("own", "c-own", "kubepods/pod1", 6e9)
		n.group("shared", 99e9)
		for _, p := range []string{"one", "two"} {
			n.pod(p, "shared", "/shared")
			n.container(p, "c-"+p, "shared", 6e9)
		}
		s := start(t, n)
		list, err := s.ListPodSandboxStats(t.Context(), nil)
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		wants := map[string]struct{ cpu, memory, processes uint64 }{
			"own": {50e9, 40 * mib, 3}, // the group, the sandbox, the container
			"one": {7e9, 80 * mib, 2},  // the sum of the sandbox and the container
			"two": {7e9, 80 * mib, 2},
		}
		for _, p := range list {
			l, w := p.GetLinux(), wants[p.GetAttributes().GetId()]
			if l.GetCpu().GetUsageCoreNanoSeconds().GetValue() != w.cpu || l.GetMemory().GetWorkingSetBytes().GetValue() != w.memory ||
				l.GetProcess().GetProcessCount().GetValue() != w.processes || len(l.GetContainers()) != 1 {
				t.Errorf("%v", p)
			}
			if eth := l.GetNetwork().GetDefaultInterface(); eth.GetName() != "eth0" || eth.GetRxBytes().GetValue() != 100 ||
				eth.GetTxErrors().GetValue() != 4 || len(l.GetNetwork().GetInterfaces()) != 1 {
				t.Errorf("%v", l.GetNetwork())
			}
		}
		time.Sleep(networkTTL / 2)
		if _, err := s.PodSandboxStats(t.Context(), "own"); err != nil || n.entered.Load() != 3 {
			t.Errorf("the namespaces were entered %d times: %v", n.entered.Load(), err)
		}
		time.Sleep(networkTTL)
		if _, err := s.PodSandboxStats(t.Context(), "own"); err != nil || n.entered.Load() != 4 || len(s.networks.cache) != 1 {
			t.Errorf("the namespaces were entered %d times, and %d are cached: %v", n.entered.Load(), len(s.networks.cache), err)
		}
	})
}

// PROPERTIES 30: a layer whose measurement hangs delays neither calls, beyond the bound for the
// first sample, nor the samples of other layers; and it is given up in the end.
func TestALayerThatHangsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, true)
		n.pod("p1", "k8s.io", "")
		var budgets []time.Duration
		n.measure = func(ctx context.Context, key string) (uint64, uint64, error) {
			if key != "c00" {
				return 1, 1, nil
			}
			began := time.Now()
			<-ctx.Done()
			if t.Context().Err() == nil {
				budgets = append(budgets, time.Since(began))
			}
			return 0, 0, ctx.Err()
		}
		for i := range 20 {
			n.container("p1", fmt.Sprintf("c%02d", i), "k8s.io", 1)
		}
		s := start(t, n)
		for _, bound := range []time.Duration{firstSample, firstSample, 0} {
			began := time.Now()
			list, err := s.ListContainerStats(t.Context(), nil)
			if err != nil || time.Since(began) > bound {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			for _, c := range list {
				if (c.GetWritableLayer() == nil) != (c.GetAttributes().GetId() == "c00") {
					t.Errorf("%v", c)
				}
			}
			time.Sleep(layerBudget)
		}
		const while = 10 * time.Minute
		for range while / time.Minute {
			if _, err := s.ListContainerStats(t.Context(), nil); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		}
		if len(budgets) < 3 || budgets[0] != layerBudget || budgets[1] != 2*layerBudget || budgets[2] != 4*layerBudget {
			t.Errorf("%v", budgets)
		}
		if spent := sum(budgets); spent > while/10 {
			t.Errorf("%v of ten minutes were spent on one layer", spent)
		}
	})
}

// A thousand containers that nobody asked about cost a third of a percent of a core. PROPERTIES 80.
func TestWhatNobodyAsksForIsSeldomMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, true)
		n.pod("p1", "k8s.io", "")
		n.container("p1", "c1", "k8s.io", 1)
		var measured atomic.Int64
		n.measure = func(context.Context, string) (uint64, uint64, error) { measured.Add(1); return 1, 1, nil }
		s := start(t, n)
		during := func(f func()) int64 {
			before := measured.Load()
			f()
			return measured.Load() - before
		}
		if rest := during(func() { time.Sleep(time.Hour) }); rest < 11 || rest > 12 {
			t.Errorf("%d samples of a layer in an hour at rest", rest)
		}
		asked := during(func() {
			for range 60 {
				st, err := s.ContainerStats(t.Context(), "c1")
				if age := time.Now().UnixNano() - st.GetWritableLayer().GetTimestamp(); err != nil || age > int64(5*time.Minute+layerTick) || st.GetCpu().GetUsageNanoCores() == nil {
					t.Errorf("%v, of a layer %v ago: %v", st, time.Duration(age), err)
				}
				time.Sleep(time.Minute)
			}
		})
		if asked < 100 {
			t.Errorf("%d samples of a layer in an hour of calls", asked)
		}
	})
}

// A container that has ended was asked for, and each call waited for a sample that was never taken;
// the one that had been taken was forgotten. PROPERTIES 30.
func TestTheLastSampleOfALayerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, true)
		n.pod("p1", "k8s.io", "")
		samples := map[string]int{}
		n.measure = func(_ context.Context, key string) (uint64, uint64, error) {
			samples[key]++
			return 4096, 3, nil
		}
		n.container("p1", "c1", "k8s.io", 1)
		s := start(t, n)
		n.exit("c1", "k8s.io/c1")
		n.container("p1", "early", "k8s.io", 1) // it ends before it is sampled
		n.exit("early", "k8s.io/early")
		time.Sleep(time.Hour)
		for range 2 {
			for id, want := range map[string]uint64{"c1": 4096, "early": 0} {
				began := time.Now()
				st, err := s.ContainerStats(t.Context(), id)
				if err != nil || time.Since(began) > 0 || st.GetWritableLayer().GetUsedBytes().GetValue() != want {
					t.Errorf("%s: %v after %v: %v", id, st, time.Since(began), err)
				}
			}
		}
		if samples["c1"] != 1 || samples["early"] != 0 {
			t.Errorf("the layers of containers that do not run are measured: %v", samples)
		}
		n.forgetContainers()
		time.Sleep(layerTick + time.Second)
		s.layers.mu.Lock()
		defer s.layers.mu.Unlock()
		if len(s.layers.known) > 0 {
			t.Errorf("samples of containers that are gone are kept: %v", s.layers.known)
		}
	})
}

// On cgroup v1 each controller has a directory of its own, and runc removes one after the other:
// the threads of a container that was ending were reported as zero. PROPERTIES 30.
func TestThreadsThatCannotBeCountedAreLeftOut(t *testing.T) {
	for controller, without := range map[string][]string{
		"pids": {"container_threads", "container_threads_max"},
		"cpu":  {"container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_throttled_seconds_total"},
	} {
		t.Run(controller, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, false)
				n.pod("p1", "k8s.io", "")
				n.container("p1", "c1", "k8s.io", 1)
				if err := os.RemoveAll(filepath.Join(n.mount, controller, "k8s.io/c1")); err != nil {
					t.Fatal(err)
				}
				s := start(t, n)
				pods, err := s.ListPodSandboxMetrics(t.Context())
				if err != nil || len(pods) != 1 || len(pods[0].GetContainerMetrics()) != 1 {
					t.Fatalf("%v %v", pods, err)
				}
				has := map[string]bool{}
				for _, m := range pods[0].GetContainerMetrics()[0].GetMetrics() {
					has[m.GetName()] = true
				}
				for _, name := range without {
					if has[name] {
						t.Errorf("%s is reported without the cgroup", name)
					}
				}
				if !has["container_cpu_usage_seconds_total"] || !has["container_memory_rss"] {
					t.Errorf("got %v", has)
				}
			})
		})
	}
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}

func TestWhatEndedIsForgotten(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.pod("p1", "k8s.io", "")
		n.container("p1", "c1", "k8s.io", 1)
		s := start(t, n)
		if _, err := s.ListContainerStats(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		n.exit("c1", "k8s.io/c1")
		n.forgetContainers()
		n.forgetPods()
		time.Sleep(cpuTick + layerTick)
		synctest.Wait()
		if len(s.rates.windows) != 0 || len(s.layers.known) != 0 {
			t.Errorf("%d rates, %d layers", len(s.rates.windows), len(s.layers.known))
		}
	})
}

// The names are those that the field's conformance suite asks for; it knows them from cAdvisor.
func TestEveryMetricIsDescribedAndHasItsLabels(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.group("kubepods/pod1", 50e9)
		n.pod("p1", "kubepods/pod1", "/kubepods/pod1")
		n.container("p1", "c1", "kubepods/pod1", 6e9)
		s := start(t, n)
		described := map[string][]string{}
		for _, d := range s.MetricDescriptors() {
			if d.GetHelp() == "" || !strings.HasPrefix(d.GetName(), "container_") {
				t.Errorf("%v", d)
			}
			described[d.GetName()] = d.GetLabelKeys()
		}
		list, err := s.ListPodSandboxMetrics(t.Context())
		if err != nil || len(list) != 1 || len(list[0].GetContainerMetrics()) != 1 {
			t.Fatal(list, err)
		}
		values, exact := map[string]uint64{}, map[string]float64{}
		for _, m := range slices.Concat(list[0].GetMetrics(), list[0].GetContainerMetrics()[0].GetMetrics()) {
			keys := described[m.GetName()]
			if len(keys) == 0 || len(m.GetLabelValues()) != len(keys) {
				t.Errorf("%v has labels %v", m, keys)
				continue
			}
			key := m.GetName()
			for n, k := range keys {
				if k == "container" && m.GetLabelValues()[n] != "" {
					key = "c1 " + key
				}
				if slices.Contains([]string{"operation", "interface", "failure_type"}, k) {
					key += " " + m.GetLabelValues()[n]
				}
			}
			if _, twice := values[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			values[key] = m.GetValue().GetValue()
			if f, err := cri138.Of[cri138.Metric](m); err != nil {
				t.Error(err)
			} else if f.GetDoubleValue() != nil {
				exact[key] = f.GetDoubleValue().GetValue()
			}
			if f := strings.Contains(m.GetName(), "_seconds"); f != (exact[key] != 0) {
				t.Errorf("%s: %v, which a time in seconds has, and nothing else", key, exact[key])
			}
		}
		wants := map[string]uint64{
			"container_cpu_usage_seconds_total":                     50,
			"c1 container_cpu_usage_seconds_total":                  6,
			"c1 container_cpu_user_seconds_total":                   4,
			"c1 container_cpu_system_seconds_total":                 2,
			"c1 container_cpu_cfs_periods_total":                    7,
			"c1 container_cpu_cfs_throttled_periods_total":          3,
			"c1 container_cpu_cfs_throttled_seconds_total":          9,
			"c1 container_memory_working_set_bytes":                 40 * mib,
			"c1 container_memory_usage_bytes":                       60 * mib,
			"c1 container_memory_max_usage_bytes":                   80 * mib,
			"c1 container_memory_rss":                               30 * mib,
			"c1 container_memory_cache":                             25 * mib,
			"c1 container_memory_mapped_file":                       4096,
			"c1 container_memory_kernel_usage":                      8192,
			"c1 container_memory_swap":                              5 * mib,
			"c1 container_memory_failures_total pgfault":            1000,
			"c1 container_memory_failures_total pgmajfault":         10,
			"c1 container_oom_events_total":                         2,
			"c1 container_processes":                                1,
			"c1 container_threads":                                  12,
			"c1 container_threads_max":                              100,
			"c1 container_fs_reads_bytes_total":                     4096,
			"c1 container_fs_writes_bytes_total":                    8192,
			"c1 container_fs_reads_total":                           1,
			"c1 container_fs_writes_total":                          2,
			"c1 container_blkio_device_usage_total Read":            4096,
			"c1 container_blkio_device_usage_total Write":           8192,
			"c1 container_fs_usage_bytes":                           4096,
			"c1 container_spec_cpu_shares":                          1000,
			"c1 container_spec_cpu_period":                          100_000,
			"c1 container_spec_cpu_quota":                           50_000,
			"c1 container_spec_memory_limit_bytes":                  100 * mib,
			"c1 container_spec_memory_reservation_limit_bytes":      0,
			"c1 container_spec_memory_swap_limit_bytes":             108 * mib,
			"c1 container_start_time_seconds":                       1_700_000_000,
			"container_network_receive_bytes_total eth0":            100,
			"container_network_transmit_bytes_total eth0":           200,
			"container_network_receive_packets_total eth0":          5,
			"container_network_transmit_packets_total eth0":         6,
			"container_network_receive_packets_dropped_total eth0":  7,
			"container_network_transmit_packets_dropped_total eth0": 8,
			"container_network_receive_errors_total eth0":           3,
			"container_network_transmit_errors_total eth0":          4,
			"container_network_receive_bytes_total net1":            300,
		}
		if n.v2 {
			for _, r := range []string{"cpu", "memory", "io"} {
				wants["c1 container_pressure_"+r+"_waiting_seconds_total"] = 5
				wants["c1 container_pressure_"+r+"_stalled_seconds_total"] = 2
			}
		}
		if got := exact["c1 container_cpu_cfs_throttled_seconds_total"]; got != 9.5 {
			t.Errorf("it was throttled for %v seconds, want 9.5", got)
		}
		for name, want := range wants {
			if got, ok := values[name]; !ok || got != want {
				t.Errorf("%s is %d (%v), want %d", name, got, ok, want)
			}
		}
		for name := range described {
			optional := strings.HasPrefix(name, "container_hugetlb") || strings.HasPrefix(name, "container_pressure") && !n.v2
			found := slices.ContainsFunc(slices.Collect(keys(values)), func(k string) bool { return strings.Contains(k+" ", name+" ") })
			if !found && !optional {
				t.Errorf("%s has no value", name)
			}
		}
	})
}

func keys(m map[string]uint64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// PROPERTIES 30: a runtime removes the directories of cgroup v1 one after the other, and an absent
// counter reads as zero. A usage of zero would be a counter that goes back.
func TestAGroupThatVanishesIsNeverZero(t *testing.T) {
	for _, v2 := range []bool{false, true} {
		n := newNode(t, v2)
		g := hierarchy{n.mount, v2}.group(n.group("g", 5e9))
		u, err := g.read(everything)
		if err != nil || !u.hasCPU || !u.hasMem {
			t.Fatalf("%v %v", u, err)
		}
		if s, err := g.cpuTime(); err != nil || s.used != u.CpuStats.CpuUsage.TotalUsage || s.used != 5e9 {
			t.Fatalf("%v %v", s, err)
		}
		if !v2 {
			if err := os.RemoveAll(filepath.Join(n.mount, "cpuacct", "g")); err != nil {
				t.Fatal(err)
			}
			if u, err := g.read(everything); err != nil || u.hasCPU || !u.hasMem {
				t.Errorf("%v %v", u, err)
			}
		}
		n.remove("g")
		if u, err := g.read(everything); !errdefs.IsNotFound(err) {
			t.Errorf("%v %v", u, err)
		}
		if s, err := g.cpuTime(); err == nil {
			t.Errorf("its CPU time is %v", s)
		}
	}
	if _, err := (hierarchy{"/sys/fs/cgroup", false}).group("").read(everything); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

func TestANamespaceThatIsGoneIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	visited := 0
	inNamespaces([]string{path, path + "-gone"}, func(int) { visited++ })
	if visited != 0 {
		t.Errorf("%d namespaces were entered", visited)
	}
	dev, err := readInterfaces()
	if err != nil || len(dev) == 0 {
		t.Errorf("%v %v", dev, err)
	}
}

func TestMessagesAreNotShared(t *testing.T) {
	n := newNode(t, true)
	n.pod("p1", "k8s.io", "")
	n.container("p1", "c1", "k8s.io", 6e9)
	s := n.service()
	first, err := s.PodSandboxStats(t.Context(), "p1")
	if err != nil {
		t.Fatal(err)
	}
	before := proto.Clone(first)
	if _, err := s.ListPodSandboxStats(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, first, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// BenchmarkListContainerStats lists 200 containers.
// many returns a service with 200 containers, whose layers were sampled.
func many(b *testing.B, v2 bool) *Service {
	n := newNode(b, v2)
	for i := range 200 {
		p := fmt.Sprint("p", i)
		n.pod(p, "k8s.io", "")
		n.container(p, fmt.Sprint("c", i), "k8s.io", 1)
	}
	s := n.service()
	s.layers.known = map[layer]*layerState{}
	for _, c := range s.containers(running()) {
		close(s.layers.add(c.layer()).tried)
	}
	return s
}

func BenchmarkListContainerStats(b *testing.B) {
	for _, v2 := range []bool{false, true} {
		b.Run(fmt.Sprintf("v%d", map[bool]int{false: 1, true: 2}[v2]), func(b *testing.B) {
			s := many(b, v2)
			for b.Loop() {
				if list, err := s.ListContainerStats(b.Context(), nil); err != nil || len(list) != 200 {
					b.Fatal(len(list), err)
				}
			}
		})
	}
}

// What a hundred clients cost that ask at the same time.
func BenchmarkAHundredListsOfContainerStats(b *testing.B) {
	s := many(b, false)
	b.ReportAllocs()
	for b.Loop() {
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if list, err := s.ListContainerStats(b.Context(), nil); err != nil || len(list) != 200 {
					b.Error(len(list), err)
				}
			})
		}
		calls.Wait()
	}
}

// A sandbox without a process has no cgroup. That of its pod is the one above its containers, and
// where the pod has none of its own, what its containers use is all.
func TestStatsOfAPodWithoutAProcess(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		n.group("kubepods/pod1", 50e9)
		n.pod("own", "kubepods/pod1", "/kubepods/pod1")
		n.container("own", "c-own", "kubepods/pod1", 6e9)
		n.pod("shared", "shared", "")
		n.container("shared", "c-shared", "shared", 6e9)
		n.pod("empty", "empty", "")
		for _, id := range []string{"own", "shared", "empty"} {
			target := n.targets[id]
			target.Process = state.Process{}
			n.targets[id] = target
		}
		list, err := start(t, n).ListPodSandboxStats(t.Context(), nil)
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		for _, p := range list {
			want := map[string]struct{ cpu, memory uint64 }{"own": {50e9, 40 * mib}, "shared": {6e9, 40 * mib}, "empty": {}}[p.GetAttributes().GetId()]
			l := p.GetLinux()
			if l.GetCpu().GetUsageCoreNanoSeconds().GetValue() != want.cpu || l.GetMemory().GetWorkingSetBytes().GetValue() != want.memory || l.GetCpu() == nil {
				t.Errorf("%v", p)
			}
		}
	})
}
