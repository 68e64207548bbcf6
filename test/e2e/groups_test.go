// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// unifiedOptions are what systemd mounts the unified hierarchy with.
const unifiedOptions = "nsdelegate,memory_recursiveprot"

// onUnified brings up a node that has cgroup v2, whatever this host has. The host's mount has its own
// options again at the end.
func onUnified(t *testing.T) *node.Node {
	t.Helper()
	before := strings.Join(node.UnifiedOptions(t), ",")
	t.Cleanup(func() { node.NewUnified(t, before) })
	return node.Start(t, node.Options{MountNS: node.NewUnified(t, unifiedOptions)})
}

// PROPERTIES 55: the first privileged pod took nsdelegate and memory_recursiveprot from the host's
// mount of cgroup v2, and so the memory protection of the whole node was off. The container sees all
// groups of the host, as it did, and can change them.
func TestTheOptionsOfTheHostsGroupsStay(t *testing.T) {
	n := onUnified(t)
	want := node.UnifiedOptions(t)
	if !slices.Contains(want, "nsdelegate") || !slices.Contains(want, "memory_recursiveprot") {
		t.Fatalf("the host's options are %q", want)
	}
	for _, privileged := range []bool{true, false} {
		cfg := n.PodConfig()
		cfg.Linux.SecurityContext.Privileged = privileged
		c := node.ContainerConfig("c", "sh", "-c", "grep ' /sys/fs/cgroup ' /proc/mounts; mkdir /sys/fs/cgroup"+n.Cgroup+"/made && echo made; ls -d /sys/fs/cgroup"+n.Cgroup)
		c.Linux.SecurityContext.Privileged = privileged
		c.Linux.SecurityContext.Seccomp = nil
		pod := n.Pod(cfg)
		id := n.Run(pod, cfg, c)
		n.Ended(id)
		log := n.Log(id)
		if mounts := strings.Count(log, " cgroup2 "); mounts != 1 {
			t.Errorf("privileged %v: %s", privileged, log)
		}
		if sees := strings.Contains(log, "/sys/fs/cgroup"+n.Cgroup+"\n") && strings.Contains(log, "made"); sees != privileged {
			t.Errorf("privileged %v: it says\n%s", privileged, log)
		}
		if got := node.UnifiedOptions(t); !slices.Equal(got, want) {
			t.Errorf("privileged %v: the host's options are %q, and were %q", privileged, got, want)
		}
	}
	n.RemoveAll(t.Context())
	for _, d := range node.Groups(n.Cgroup) {
		node.RemoveGroup(d)
	}
}

// PROPERTIES 55: with cgroup v2, a container is frozen by its own group, one below it, or the pod's:
// it is stopped and removed at once.
func TestAFrozenContainerOfCgroupV2IsEnded(t *testing.T) {
	n := onUnified(t)
	for _, where := range []string{"own", "below", "above"} {
		cfg := n.PodConfig()
		cfg.Linux.CgroupParent += "/" + cfg.GetMetadata().GetName()
		pod := n.Pod(cfg)
		id := n.Run(pod, cfg, node.ContainerConfig("frozen", "sleep", "1000"))
		pid := n.Pid(id)
		at := unifiedGroup(t, pid)
		switch where {
		case "below":
			at = filepath.Join(at, "below")
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
				t.Fatal(err)
			}
		case "above":
			at = filepath.Dir(at)
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.freeze"), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		n.Until("it is frozen", func() bool {
			b, err := os.ReadFile(filepath.Join(at, "cgroup.events"))
			return err == nil && strings.Contains(string(b), "frozen 1")
		})
		n.Within(5*time.Second, "a stop, frozen by the group "+where, func() node.Span {
			began := time.Now()
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		node.ExpectExit(t, n.Container(id), 137, "Error")
		n.Within(10*time.Second, "the removal of its pod", func() node.Span {
			began := time.Now()
			if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		for _, d := range node.Groups(cfg.Linux.CgroupParent) { // the kubelet would
			node.RemoveGroup(d)
		}
	}
}

// unifiedGroup returns the directory of the group of a process in the unified hierarchy.
func unifiedGroup(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				if _, err := os.Stat(root + path + "/cgroup.freeze"); err == nil {
					return root + path
				}
			}
		}
	}
	t.Fatalf("process %d is in no group of the unified hierarchy that is mounted here: %s", pid, b)
	return ""
}
