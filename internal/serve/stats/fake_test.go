// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

func TestMain(m *testing.M) {
	cgroups.TestMode = true // the library reads files that are not of cgroupfs
	os.Exit(m.Run())
}

// write makes files by their path below dir.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	mib   = 1 << 20
	noMax = "9223372036854771712" // what cgroup v1 says where there is no limit
)

// groupV2 is a group of cgroup v2 with a memory limit of 100 MiB.
func groupV2(cpu uint64) map[string]string {
	psi := "some avg10=1.50 avg60=2.50 avg300=3.50 total=5000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n"
	return map[string]string{
		"cgroup.procs":        fmt.Sprintf("%d\n", os.Getpid()),
		"cpu.stat":            fmt.Sprintf("usage_usec %d\nuser_usec 4000000\nsystem_usec 2000000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 9500000\n", cpu/1000),
		"cpu.max":             "50000 100000\n",
		"cpu.weight":          "39\n",
		"cpu.pressure":        psi,
		"memory.current":      fmt.Sprint(60*mib, "\n"),
		"memory.max":          fmt.Sprint(100*mib, "\n"),
		"memory.peak":         fmt.Sprint(80*mib, "\n"),
		"memory.low":          "0\n",
		"memory.stat":         fmt.Sprintf("anon %d\nfile %d\nfile_mapped 4096\nkernel 8192\ninactive_file %d\npgfault 1000\npgmajfault 10\n", 30*mib, 25*mib, 20*mib),
		"memory.swap.current": fmt.Sprint(5*mib, "\n"),
		"memory.swap.max":     fmt.Sprint(8*mib, "\n"),
		"memory.events":       "low 0\nhigh 0\nmax 4\noom 2\noom_kill 2\n",
		"memory.pressure":     psi,
		"io.stat":             "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
		"io.pressure":         psi,
		"pids.current":        "12\n",
		"pids.max":            "100\n",
	}
}

// groupV1 is the same group on cgroup v1, by controller.
func groupV1(name string, cpu uint64) map[string]string {
	files := map[string]string{}
	add := func(controller string, content map[string]string) {
		for file, c := range content {
			files[filepath.Join(controller, name, file)] = c
		}
	}
	add("cpuacct", map[string]string{
		"cpuacct.usage":        fmt.Sprint(cpu, "\n"),
		"cpuacct.usage_percpu": fmt.Sprint(cpu, "\n"),
		"cpuacct.usage_all":    fmt.Sprintf("cpu user system\n0 %d 0\n", cpu),
		"cpuacct.stat":         "user 400\nsystem 200\n",
	})
	add("cpu", map[string]string{
		"cpu.stat":          "nr_periods 7\nnr_throttled 3\nthrottled_time 9500000000\n",
		"cpu.shares":        "1000\n",
		"cpu.cfs_period_us": "100000\n",
		"cpu.cfs_quota_us":  "50000\n",
	})
	memory := map[string]string{
		"cgroup.procs":                fmt.Sprintf("%d\n", os.Getpid()),
		"memory.use_hierarchy":        "1\n",
		"memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"memory.soft_limit_in_bytes":  noMax + "\n",
		"memory.stat":                 fmt.Sprintf("cache 1\nrss 1\ninactive_file 1\ntotal_cache %d\ntotal_rss %d\ntotal_mapped_file 4096\ntotal_inactive_file %d\ntotal_pgfault 1000\ntotal_pgmajfault 10\n", 25*mib, 30*mib, 20*mib),
		"memory.kmem.usage_in_bytes":  "8192\n",
		"memory.kmem.limit_in_bytes":  noMax + "\n",
		"memory.memsw.usage_in_bytes": fmt.Sprint(65*mib, "\n"),
		"memory.memsw.limit_in_bytes": fmt.Sprint(108*mib, "\n"),
		"memory.usage_in_bytes":       fmt.Sprint(60*mib, "\n"),
		"memory.limit_in_bytes":       fmt.Sprint(100*mib, "\n"),
	}
	for _, module := range []string{"memory", "memory.kmem", "memory.memsw"} {
		memory[module+".max_usage_in_bytes"] = fmt.Sprint(80*mib, "\n")
		memory[module+".failcnt"] = "0\n"
	}
	add("memory", memory)
	add("pids", map[string]string{"pids.current": "12\n", "pids.max": "100\n"})
	add("blkio", map[string]string{
		"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 8192\nTotal 12288\n",
		"blkio.throttle.io_serviced_recursive":      "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
	})
	return files
}

// node is a fake of everything that a Service works on.
type node struct {
	t     testing.TB
	v2    bool
	mount string
	// measure stands for the snapshotter.
	measure func(ctx context.Context, key string) (bytes, inodes uint64, err error)
	entered atomic.Int64 // network namespaces

	mu         sync.Mutex
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	targets    map[string]pod.Target
}

func newNode(t testing.TB, v2 bool) *node {
	return &node{
		t:       t,
		v2:      v2,
		mount:   t.TempDir(),
		targets: map[string]pod.Target{},
		measure: func(context.Context, string) (uint64, uint64, error) { return 4096, 3, nil },
	}
}

// group makes the files of a cgroup and returns its directory as a record has it.
func (n *node) group(name string, cpu uint64) string {
	if n.v2 {
		write(n.t, filepath.Join(n.mount, name), groupV2(cpu))
		return filepath.Join(n.mount, name)
	}
	write(n.t, n.mount, groupV1(name, cpu))
	return filepath.Join(n.mount, "memory", name)
}

func (n *node) remove(name string) {
	dirs := []string{name}
	if !n.v2 {
		dirs, _ = filepath.Glob(filepath.Join(n.mount, "*", name))
	} else {
		dirs[0] = filepath.Join(n.mount, name)
	}
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			n.t.Fatal(err)
		}
	}
}

// pod makes a sandbox that is ready, in a cgroup below parent.
func (n *node) pod(id, parent, asked string) {
	n.sandboxes = append(n.sandboxes, &runtimeapi.PodSandbox{
		Id:       id,
		Metadata: &runtimeapi.PodSandboxMetadata{Name: id, Uid: "uid-" + id, Namespace: "default"},
		State:    runtimeapi.PodSandboxState_SANDBOX_READY,
		Labels:   map[string]string{"app": id},
	})
	n.targets[id] = pod.Target{
		ID:           id,
		PodID:        id,
		NetNS:        "/run/netns/" + id,
		Process:      n.process(parent+"/"+id, 1e9),
		Handler:      pod.Handler{HostProcess: true},
		Running:      true,
		CgroupParent: asked,
	}
}

// container makes a container that runs, in a cgroup beside its sandbox's.
func (n *node) container(podID, id, parent string, cpu uint64) {
	n.containers = append(n.containers, &runtimeapi.Container{
		Id:           id,
		PodSandboxId: podID,
		Metadata:     &runtimeapi.ContainerMetadata{Name: "name-" + id},
		Image:        &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "busybox"},
		State:        runtimeapi.ContainerState_CONTAINER_RUNNING,
		Labels:       map[string]string{"app": podID},
		Annotations:  map[string]string{"note": id},
	})
	n.targets[id] = pod.Target{
		ID:          id,
		PodID:       podID,
		Process:     n.process(parent+"/"+id, cpu),
		Handler:     pod.Handler{HostProcess: true},
		Running:     true,
		Snapshotter: "overlayfs",
	}
}

func (n *node) process(group string, cpu uint64) state.Process {
	return state.Process{
		Process: pidfd.Process{Pid: uint32(os.Getpid())},
		Cgroup:  n.group(group, cpu),
	}
}

// exit ends a container: its cgroup is gone.
func (n *node) exit(id, group string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, c := range n.containers {
		if c.GetId() == id {
			c = proto.CloneOf(c)
			c.State = runtimeapi.ContainerState_CONTAINER_EXITED
			n.containers[i] = c
		}
	}
	target := n.targets[id]
	target.Running = false
	n.targets[id] = target
	n.remove(group)
}

// forgetContainers removes all containers.
func (n *node) forgetContainers() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = nil
}

// forgetPods removes all sandboxes.
func (n *node) forgetPods() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sandboxes = nil
}

func (n *node) service() *Service {
	s := New(Config{
		Pods:       n,
		Layers:     n,
		Mountpoint: func() string { return n.mount },
		Cgroups:    n.mount,
		Unified:    n.v2,
	})
	s.networks.enter = func(paths []string, visit func(int)) {
		for i := range paths {
			n.entered.Add(1)
			visit(i)
		}
	}
	s.networks.read = func() (procfs.NetDev, error) {
		return procfs.NetDev{
			"lo":   {Name: "lo", RxBytes: 1},
			"eth0": {Name: "eth0", RxBytes: 100, TxBytes: 200, RxErrors: 3, TxErrors: 4, RxPackets: 5, TxPackets: 6, RxDropped: 7, TxDropped: 8},
			"net1": {Name: "net1", RxBytes: 300},
		}, nil
	}
	return s
}

func (n *node) ListPodSandbox(f *runtimeapi.PodSandboxFilter) (list []*runtimeapi.PodSandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.sandboxes {
		if strings.HasPrefix(p.GetId(), f.GetId()) && (f.GetState() == nil || f.GetState().GetState() == p.GetState()) &&
			matches(f.GetLabelSelector(), p.GetLabels()) {
			list = append(list, p)
		}
	}
	return list
}

func (n *node) ListContainers(f *runtimeapi.ContainerFilter) (list []*runtimeapi.Container) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.containers {
		if strings.HasPrefix(c.GetId(), f.GetId()) && strings.HasPrefix(c.GetPodSandboxId(), f.GetPodSandboxId()) &&
			(f.GetState() == nil || f.GetState().GetState() == c.GetState()) && matches(f.GetLabelSelector(), c.GetLabels()) {
			list = append(list, c)
		}
	}
	return list
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (n *node) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		StartedAt: 1_700_000_000e9,
		Resources: &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpuShares: 1000}},
	}}, nil
}

func (n *node) Target(id string) (pod.Target, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, ok := n.targets[id]
	if !ok {
		return t, errdefs.ErrNotFound
	}
	return t, nil
}

func (n *node) SnapshotUsage(ctx context.Context, _, key string) (bytes, inodes uint64, err error) {
	return n.measure(ctx, key)
}
