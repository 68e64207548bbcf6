// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroup"
	"berth/test/node"
)

// setting reads a setting of a process's cgroup: v1's file in the directory of its controller, or
// v2's.
func setting(t *testing.T, pid int, controller, v1, v2 string) string {
	t.Helper()
	dir, err := cgroup.Of(uint32(pid))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, v2)
	if !cgroup.V2() {
		file = filepath.Join(strings.Replace(dir, "/memory/", "/"+controller+"/", 1), v1)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// expectLimits compares what a container that runs has, and what its status reports, with a memory
// limit in MiB and a CPU quota per 100 ms in ms.
func expectLimits(t *testing.T, n *node.Node, id, memory, quota string, mib, ms int64) {
	t.Helper()
	pid := n.Pid(id)
	if got := setting(t, pid, "memory", "memory.limit_in_bytes", "memory.max"); got != memory {
		t.Errorf("the memory limit is %s, want %s", got, memory)
	}
	if got := setting(t, pid, "cpu", "cpu.cfs_quota_us", "cpu.max"); got != quota && got != quota+" 100000" {
		t.Errorf("the CPU quota is %s, want %s", got, quota)
	}
	r := n.Container(id).GetResources().GetLinux()
	if r.GetMemoryLimitInBytes() != mib<<20 || r.GetCpuQuota() != ms*1000 || r.GetCpuPeriod() != 100000 {
		t.Errorf("the status reports %v", r)
	}
}

// An update before the start and one while the container runs are in its cgroup and in its status,
// also after kill -9 of berth. One whose shim does not answer is carried out by the next berth, and
// delays no exit. One that the kernel refuses changes nothing.
//
// PROPERTIES 1, 4 and 22.
func TestAnUpdateIsInTheCgroup(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		update := func(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
			_, err := n.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
			return err
		}
		must := func(id string, r *runtimeapi.LinuxContainerResources) {
			t.Helper()
			if err := update(t.Context(), id, r); err != nil {
				t.Fatal(err)
			}
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "sh", "-c", "dd if=/dev/zero of=/dev/shm/used bs=1M count=32 2>/dev/null; echo filled; sleep 1000")
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20}
		id := n.Create(pod, cfg, c)
		must(id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 96 << 20})
		if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		expectLimits(t, n, id, "100663296", "50000", 96, 50)
		must(id, &runtimeapi.LinuxContainerResources{CpuQuota: 70000})
		must(id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpusetCpus: "0"})
		expectLimits(t, n, id, "134217728", "70000", 128, 70)
		if got := setting(t, n.Pid(id), "cpuset", "cpuset.cpus", "cpuset.cpus"); got != "0" {
			t.Errorf("the cpuset is %s", got)
		}

		n.Until("its memory is filled", func() bool { return strings.Contains(n.Log(id), "filled") })
		if err := update(t.Context(), id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("less than it uses: %v", err)
		}
		if err := update(t.Context(), id, &runtimeapi.LinuxContainerResources{CpusetCpus: "0-4095"}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("CPUs that there are not: %v", err)
		}
		expectLimits(t, n, id, "134217728", "70000", 128, 70)

		shims := n.Shims()
		defer signalAll(t, shims, syscall.SIGCONT)
		signalAll(t, shims, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := update(ctx, id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 160 << 20}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("its shim does not answer: %v", err)
		}
		expectLimits(t, n, id, "134217728", "70000", 128, 70)
		n.Berth.Kill(syscall.SIGKILL)
		signalAll(t, shims, syscall.SIGCONT)
		n.StartBerth()
		n.Until("the change that was cut off is in effect", func() bool {
			return n.Container(id).GetResources().GetLinux().GetMemoryLimitInBytes() == 160<<20
		})
		expectLimits(t, n, id, "167772160", "70000", 160, 70)

		signalAll(t, shims, syscall.SIGSTOP)
		done := make(chan error, 1)
		go func() { done <- update(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuQuota: 20000}) }()
		n.Until("the update is on record", func() bool { return strings.Contains(verbose(t, n, id), `"wanted"`) })
		if err := syscall.Kill(n.Pid(id), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if n.Exact() { // elsewhere the shim, which is stopped, is the one that knows the code
			node.ExpectExit(t, n.Ended(id), 137, "Error")
		}
		signalAll(t, shims, syscall.SIGCONT)
		node.ExpectExit(t, n.Ended(id), 137, "Error")
		if err := <-done; status.Code(err) != codes.FailedPrecondition {
			t.Errorf("it ended: %v", err)
		}
		if err := update(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuQuota: 20000}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("it has ended: %v", err)
		}
	})
}

func verbose(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetInfo()["info"]
}
