// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestTheGroupsOfAUserNamespaceAreReadFromItsMap(t *testing.T) {
	for lines, want := range map[string]uint32{
		"         0          0 4294967295\n":                         0, // the initial one
		"         0       1000          1\n":                         1,
		"         0       1000          1\n1     100000     65536\n": 65537,
		"         0       1000          1\n5     100000     65536\n": 1, // 1 to 4 are not there
	} {
		if got, err := gidsIn(lines); err != nil || got != want {
			t.Errorf("%q: %d groups, %v, and not %d", lines, got, err, want)
		}
	}
	if _, err := gidsIn("nonsense\n"); err == nil {
		t.Error("nonsense is the map of a user namespace")
	}
}

// In a user namespace of a user's own the kernel refused the groups that a pod without one of its own
// may ping with, and with them every pod.
func TestAPodOfAUserPingsWithTheGroupsThatThereAre(t *testing.T) {
	h := host()
	h.GIDs = 65537
	if got, err := NetSysctls(h, input().Sandbox); err != nil || got[pingGroups] != "0 65536" {
		t.Errorf("%v, %v", got, err)
	}
}

// The OCI runtime could not write cpu.weight where the controller was not delegated, and no container
// started: the kubelet and berth play send CPU shares with every one.
func TestCPUSharesAreLeftOutWithoutTheController(t *testing.T) {
	h := host()
	h.CgroupV2, h.Lacks = true, []string{"cpu", "cpuset", "memory"}
	in := input()
	in.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000}
	s, degraded, err := ForContainer(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.Linux.Resources.CPU; c.Shares != nil || c.Period != nil {
		t.Errorf("the OCI runtime is asked to write %+v", c)
	}
	if len(degraded) != 1 || degraded[0].What != "cpu_shares 2" || !strings.Contains(degraded[0].Why, "delegated") {
		t.Errorf("degraded: %v", degraded)
	}
	p, _, err := ForSandbox(h, Sandbox{ID: "p1", Config: in.Sandbox, NetNS: "/run/netns/p1"})
	if err != nil || p.Linux.Resources.CPU.Shares != nil {
		t.Errorf("shares of the pause process: %v, %v", p.Linux.Resources.CPU.Shares, err)
	}
}

// A limit that is not kept is refused by name, and never left out.
func TestALimitWithoutItsControllerIsRefused(t *testing.T) {
	h := host()
	h.CgroupV2, h.Lacks = true, []string{"cpu", "cpuset", "memory"}
	for field, r := range map[string]*runtimeapi.LinuxContainerResources{
		"cpu_quota":             {CpuQuota: 1000},
		"cpuset_cpus":           {CpusetCpus: "0"},
		"cpuset_mems":           {CpusetMems: "0"},
		"memory_limit_in_bytes": {MemoryLimitInBytes: 1 << 20},
	} {
		if _, _, err := LinuxResources(h, r); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, degraded, err := LinuxResources(host(), r); err != nil || len(degraded) > 0 {
			t.Errorf("%s on a host with the controllers: %v, %v", field, degraded, err)
		}
	}
}
