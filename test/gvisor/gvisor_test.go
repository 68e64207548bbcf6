// SPDX-License-Identifier: Apache-2.0

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// start starts a berth with the handler runsc beside runc.
func start(t *testing.T) *node.Node {
	t.Helper()
	dir, programs := node.TempDir(t), filepath.Join(node.Module(t), "build/gvisor")
	files := map[string]string{
		"runsc.toml":  "binary_name = '" + programs + "/runsc'\nroot = '" + dir + "/runsc'\n[runsc_config]\nplatform = 'systrap'\n",
		"config.toml": "[runtimes.runsc]\ntype = '" + programs + "/containerd-shim-runsc-v1'\nhost_process = false\nconfig_path = '" + dir + "/runsc.toml'\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return node.Start(t, node.Options{Args: []string{"--config", dir + "/config.toml"}})
}

// pod makes a pod of gVisor.
func pod(t *testing.T, n *node.Node) (string, *runtimeapi.PodSandboxConfig) {
	t.Helper()
	cfg := n.PodConfig()
	resp, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: "runsc"})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetPodSandboxId(), cfg
}

// A pod of gVisor has a kernel of its own, exact codes, logs, processes of exec and statistics, and
// a pod of runc beside it has those that it always has.
func TestAPodOfGVisorLives(t *testing.T) {
	n := start(t)
	id, cfg := pod(t, n)
	busy := n.Run(id, cfg, node.ContainerConfig("busy", "sh", "-c", "dd if=/dev/zero of=/dev/shm/x bs=1M count=20 2>/dev/null; echo filled; while :; do :; done"))
	c := n.Run(id, cfg, node.ContainerConfig("c", "sh", "-c", "dmesg | grep -ci gvisor; echo error >&2; exit 7"))
	usual := n.PodConfig()
	beside := n.Run(n.Pod(usual), usual, node.ContainerConfig("c", "sh", "-c", "exit 8"))
	node.ExpectExit(t, n.Ended(c), 7, "Error")
	node.ExpectExit(t, n.Ended(beside), 8, "Error")
	if got := n.Log(c); !strings.Contains(got, "1\n") || !strings.Contains(got, "error\n") {
		t.Errorf("the log is %q", got)
	}
	n.Until("the memory is filled", func() bool { return strings.Contains(n.Log(busy), "filled") })
	exec, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: busy, Cmd: []string{"sh", "-c", "hostname; exit 9"}, Timeout: 30})
	if err != nil || exec.GetExitCode() != 9 || len(exec.GetStdout()) == 0 {
		t.Errorf("exec: %v %v", exec, err)
	}
	var st *runtimeapi.ContainerStats
	n.Until("the usage is known", func() bool {
		resp, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: busy})
		st = resp.GetStats()
		return err == nil && st.GetCpu().GetUsageNanoCores().GetValue() > 0 && st.GetMemory().GetWorkingSetBytes().GetValue() > 0
	})
	t.Log(st)
}

// An end while berth is away has its code, and a container that goes on is stopped by the next
// berth.
func TestAPodOfGVisorOutlivesBerth(t *testing.T) {
	n := start(t)
	id, cfg := pod(t, n)
	long := n.Run(id, cfg, node.ContainerConfig("long", "sh", "-c", "echo up; trap 'exit 6' TERM; while :; do sleep 0.1; done"))
	ends := n.Run(id, cfg, node.ContainerConfig("ends", "sh", "-c", "while ! [ -e /dev/shm/now ]; do sleep 0.1; done; exit 5"))
	n.Until("it runs", func() bool { return strings.Contains(n.Log(long), "up") })
	if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: ends, Cmd: []string{"touch", "/dev/shm/now"}, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	// The shim of gVisor ends with its container if nobody listens, and then nobody knows the code.
	if st := n.Ended(ends); st.GetExitCode() != 5 && st.GetReason() != "Unknown" {
		t.Errorf("an end while berth was away: %v", st)
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: long, Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(long), 6, "Error")
}

// A shim that hangs keeps neither the statistics of others nor the pods of runc waiting.
func TestAShimOfGVisorThatHangsHoldsUpNoOther(t *testing.T) {
	n := start(t)
	id, cfg := pod(t, n)
	hung := n.Run(id, cfg, node.ContainerConfig("c", "sleep", "1000"))
	usual := n.PodConfig()
	other := n.Run(n.Pod(usual), usual, node.ContainerConfig("c", "sleep", "1000"))
	b, err := os.ReadFile(filepath.Join(n.Bundle(hung), "shim.pid"))
	shim, bad := strconv.Atoi(strings.TrimSpace(string(b)))
	if err := errors.Join(err, bad); err != nil || shim < 2 { // Kill(0) would stop the tests themselves
		t.Fatal(shim, err)
	}
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(shim, syscall.SIGCONT) }()
	n.Within(3*time.Second, "statistics of all", func() node.Span {
		began := time.Now()
		resp, err := n.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
		if err != nil || len(resp.GetStats()) != 2 {
			t.Error(resp, err)
		}
		for _, st := range resp.GetStats() {
			if known := st.GetCpu() != nil; known != (st.GetAttributes().GetId() == other) {
				t.Error(st)
			}
		}
		return node.Span{From: began, To: time.Now()}
	})
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: other, Timeout: 1}); err != nil {
		t.Error(err)
	}
}
