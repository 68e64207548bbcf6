// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// says runs a command in a container and returns what it prints.
func says(t *testing.T, n *node.Node, id string, command ...string) string {
	t.Helper()
	r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command})
	if err != nil || r.GetExitCode() != 0 {
		t.Fatalf("%q: %v %v", command, r, err)
	}
	return strings.TrimSpace(string(r.GetStdout()))
}

func isReady(t *testing.T, n *node.Node, pod string) bool {
	t.Helper()
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// pauses lists the pause processes of a node: the programs of berth's own root file system.
func pauses(t *testing.T, n *node.Node) []string {
	t.Helper()
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err == nil && to == "/pause" {
			if groups, err := os.ReadFile(filepath.Dir(exe) + "/cgroup"); err == nil && strings.Contains(string(groups), n.Cgroup) {
				found = append(found, exe)
			}
		}
	}
	return found
}

var (
	// withoutPause are the arguments of a berth that starts no pause process where nobody needs one.
	withoutPause = []string{"--set", "pod.pause=auto"}
	// ownShims are those of one whose pods share no shim, so that they end with their shim.
	ownShims = []string{"--set", "runtimes.runc.shim_pods=1"}
)

func eitherContainerd(t *testing.T, test func(t *testing.T, n *node.Node)) {
	node.Modes(t, func(t *testing.T, external bool) {
		test(t, node.Start(t, node.Options{External: external, Args: append(withoutPause, ownShims...)}))
	})
}

// PROPERTIES 31: no process holds the namespaces of a pod that does not share its PID namespace.
// The pod has all that it asked for, through restarts, kill -9 of berth and the end of its shim,
// and is READY until it is stopped.
func TestAPodWithoutAPauseProcess(t *testing.T) {
	t.Parallel()
	eitherContainerd(t, func(t *testing.T, n *node.Node) {
		cfg := n.PodConfig()
		cfg.Hostname = "of-the-pod"
		cfg.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "4000 4999", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "13"}
		pod := n.Pod(cfg)
		first := n.Run(pod, cfg, node.ContainerConfig("first", "sleep", "1000"))
		second := n.Run(pod, cfg, node.ContainerConfig("second", "sleep", "1000"))
		if found := pauses(t, n); len(found) > 0 {
			t.Errorf("pause processes: %q", found)
		}
		look := func() {
			t.Helper()
			// One call for all: a call of a runtime takes long in emulation.
			const script = "hostname; cd /proc/sys; cat /etc/hostname net/ipv4/ip_local_port_range kernel/shm_rmid_forced fs/mqueue/msg_max; cd /proc/self/ns; for n in ipc uts net pid; do readlink $n; done"
			want := []string{"of-the-pod", "of-the-pod", "4000\t4999", "1", "13"}
			one := strings.Split(says(t, n, first, "sh", "-c", script), "\n")
			two := strings.Split(says(t, n, second, "sh", "-c", script), "\n")
			if len(one) != len(want)+4 || len(two) != len(one) {
				t.Fatalf("%q, %q", one, two)
			}
			if !slices.Equal(one[:5], want) || !slices.Equal(two[:5], want) {
				t.Errorf("%q and %q, want %q", one[:5], two[:5], want)
			}
			for i, ns := range []string{"ipc", "uts", "net"} {
				host, err := os.Readlink("/proc/self/ns/" + ns)
				if one, two := one[5+i], two[5+i]; err != nil || one != two || one == host {
					t.Errorf("%s: the containers have %s and %s, the host has %s: %v", ns, one, two, host, err)
				}
			}
			if one[8] == two[8] {
				t.Error("the containers share a PID namespace")
			}
			if !isReady(t, n, pod) {
				t.Error("it is not READY")
			}
		}
		look()
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		look()
		n.Berth.Signal(syscall.SIGTERM)
		n.Berth.Wait()
		n.StartBerth()
		look()
		for id, pid := range n.Shims() {
			if id == pod {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		n.Ended(first)
		n.Ended(second)
		first = n.Run(pod, cfg, node.ContainerConfig("third", "sleep", "1000"))
		second = n.Run(pod, cfg, node.ContainerConfig("fourth", "sleep", "1000"))
		look()
		if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
		if isReady(t, n, pod) {
			t.Error("it is READY after its stop")
		}
		n.RemoveAll(t.Context())
		n.NoLeaks(t.Context())
	})
}

// A pod that shares its PID namespace needs a process that is the first in it, and that reaps.
func TestAPodThatSharesItsPIDNamespaceHasAPauseProcess(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: withoutPause})
	cfg := n.PodConfig()
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "sleep", "1000")
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	id := n.Run(pod, cfg, c)
	n.Until("there is one pause process", func() bool { return len(pauses(t, n)) == 1 })
	if got := says(t, n, id, "cat", "/proc/1/comm"); got != "pause" {
		t.Errorf("its first process is %q", got)
	}
}

// The setting brings the pause process back, for new pods.
func TestThePauseProcessIsThereWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: []string{"--set", "pod.pause=always"}})
	n.Pod(n.PodConfig())
	// A sandbox is READY as soon as it is started, and runc may need a moment to execute its program.
	n.Until("there is one pause process", func() bool { return len(pauses(t, n)) == 1 })
}

// A pod in the host's namespaces has nothing to pin. It is READY until it is stopped like any
// other.
func TestAPodInTheHostsNamespacesWithoutAPauseProcess(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: withoutPause})
	cfg := n.PodConfig()
	cfg.Hostname = ""
	host := runtimeapi.NamespaceMode_NODE
	cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Network: host, Ipc: host, Pid: host}
	pod := n.Pod(cfg)
	c := containerOf(cfg)
	id := n.Run(pod, cfg, c)
	if found := pauses(t, n); len(found) > 0 {
		t.Errorf("pause processes: %q", found)
	}
	for _, ns := range []string{"ipc", "uts", "net", "pid"} {
		host, err := os.Readlink("/proc/self/ns/" + ns)
		if got := says(t, n, id, "readlink", "/proc/self/ns/"+ns); err != nil || got != host {
			t.Errorf("%s: %s, the host has %s: %v", ns, got, host, err)
		}
	}
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	if !isReady(t, n, pod) {
		t.Error("it is not READY after a kill of berth")
	}
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
}

// containerOf is a container that has the namespaces of its pod.
func containerOf(cfg *runtimeapi.PodSandboxConfig) *runtimeapi.ContainerConfig {
	c := node.ContainerConfig("c", "sleep", "1000")
	c.Linux.SecurityContext.NamespaceOptions = cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return c
}

// A reboot takes the pins away. The kubelet learns that the pod is NOTREADY, and makes another one.
func TestAPodWhosePinsAreLostIsNotReadyOnceBerthIsBack(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: withoutPause})
	pod := n.Pod(n.PodConfig())
	if !isReady(t, n, pod) {
		t.Fatal("it is not READY")
	}
	n.Berth.Kill(syscall.SIGKILL)
	for _, name := range []string{"ipc", "uts"} {
		if out, err := command.New(t, "umount", filepath.Join(n.Dir, "run/pins", pod, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	n.StartBerth()
	n.Until("NOTREADY", func() bool { return !isReady(t, n, pod) })
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
}
