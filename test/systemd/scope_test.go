// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// driver is berth's configuration for the systemd cgroup driver, as docs/kubelet.md has it.
const driver = `[runtimes.runc]
type = 'io.containerd.runc.v2'
host_process = true
systemd_cgroup = true
`

// slices is the parent that a kubelet with the systemd driver names for a burstable pod.
const slices = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e_3d4c.slice"

// startInSlices starts berth with the systemd driver. Its pods are in slices.
func startInSlices(t *testing.T, more string) *host {
	t.Helper()
	h := start(t, driver+more, "")
	h.Cgroup = slices
	return h
}

// scope is the unit in which a container or a sandbox is.
func scope(id string) string { return "cri-containerd-" + id + ".scope" }

// scopes are the units of containers and sandboxes that systemd knows, also those that failed.
func (h *host) scopes() []string {
	h.t.Helper()
	var found []string
	for line := range strings.Lines(h.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "cri-containerd-*")) {
		found = append(found, strings.Fields(line)[0])
	}
	return found
}

// gone waits until systemd knows no scope of a container.
func (h *host) gone(id string) {
	h.t.Helper()
	h.until("there is no scope of "+id, func() bool { return h.property(scope(id), "LoadState") == "not-found" })
}

// A container is in a scope of its own, with its limits, in the slice that the kubelet names for
// the pod. Its statistics are those of the scope, and the pod's those of the slice. The scope is
// gone after the end.
func TestAContainerIsInAScopeOfThePodsSlice(t *testing.T) {
	h := startInSlices(t, "")
	resp, err := h.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || resp.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_SYSTEMD {
		t.Errorf("the driver is reported as %v %v", resp, err)
	}
	cfg := h.PodConfig()
	pod := h.Pod(cfg)
	c := node.ContainerConfig("c", "sh", "-c", waiting)
	c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	id := h.Run(pod, cfg, c)
	h.Until("it is ready", func() bool { return h.Log(id) != "" })
	pid := h.Pid(id)
	if got, want := h.group(pid), filepath.Join("/sys/fs/cgroup", slices, scope(id)); got != want {
		t.Errorf("the cgroup is %s, not %s", got, want)
	}
	if b, err := os.ReadFile(h.group(pid) + "/memory.max"); err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(64<<20) {
		t.Errorf("memory.max: %s %v", b, err)
	}
	for name, want := range map[string]string{
		"ActiveState": "active",
		"Slice":       filepath.Base(slices),
		"MemoryMax":   fmt.Sprint(64 << 20),
	} {
		if got := h.property(scope(id), name); got != want {
			t.Errorf("%s of the scope is %q, not %q", name, got, want)
		}
	}
	h.until("the container and the pod are measured", func() bool {
		one, err := h.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		all, err := h.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
		if err != nil {
			t.Fatal(err)
		}
		container, whole := one.GetStats(), all.GetStats().GetLinux()
		return container.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 &&
			container.GetMemory().GetWorkingSetBytes().GetValue() > 0 &&
			whole.GetMemory().GetWorkingSetBytes().GetValue() > container.GetMemory().GetWorkingSetBytes().GetValue()
	})
	h.end(pid, syscall.SIGTERM)
	node.ExpectExit(t, h.Ended(id), 42, "Error")
	h.gone(id)
	if _, err := h.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	h.gone(pod)
	if left := h.scopes(); len(left) > 0 {
		t.Errorf("scopes are left: %v", left)
	}
}

// PROPERTIES 10: systemd removes the cgroup of a scope once it is empty, and the counter of OOM
// kills with it. What the OOM killer ends is OOMKilled all the same, again and again, and what was
// merely killed is not.
func TestOOMKillsInScopesAreReportedAndNoOther(t *testing.T) {
	h := startInSlices(t, "")
	cfg := h.PodConfig()
	pod := h.Pod(cfg)
	eats := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		return h.Run(pod, cfg, c)
	}
	var fast []string
	for i := range 5 {
		fast = append(fast, eats(fmt.Sprint("fast", i), "exec tail /dev/zero"))
	}
	child := eats("child", "tail /dev/zero; exit $?")
	for _, id := range append(fast, child) {
		node.ExpectExit(t, h.Ended(id), 137, "OOMKilled")
	}
	kills := eats("kills-itself", "sh -c 'kill -9 $$'; exit $?")
	plain := eats("plain", "trap : TERM; echo ready; while :; do sleep 0.1; done")
	h.Until("ready", func() bool { return h.Log(plain) != "" })
	if err := syscall.Kill(h.Pid(plain), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, h.Ended(kills), 137, "Error")
	node.ExpectExit(t, h.Ended(plain), 137, "Error")
	for _, id := range append(fast, child, kills, plain) {
		h.gone(id)
	}
}

// Pods in scopes go on while berth is stopped, and what the next berth finds is right: codes, and
// an OOM kill of which the scope and its counter are gone.
//
// PROPERTIES 10.
func TestScopesOutliveBerth(t *testing.T) {
	h := startInSlices(t, "")
	_, runs := h.Sh("sleep 10000")
	_, ends := h.waits()
	cfg := h.PodConfig() // a pod has a slice that no other pod has
	cfg.Linux.CgroupParent = strings.Replace(slices, "pod1f2e", "pod5a6b", 1)
	c := node.ContainerConfig("eats", "sh", "-c", "trap 'exec tail /dev/zero' TERM; echo ready; while :; do sleep 0.1; done")
	c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	eats := h.Run(h.Pod(cfg), cfg, c)
	h.Until("ready", func() bool { return h.Log(eats) != "" })
	runsPid, endsPid, eatsPid := h.Pid(runs), h.Pid(ends), h.Pid(eats)
	h.systemctl("stop", "berth")
	h.end(endsPid, syscall.SIGTERM)
	h.end(eatsPid, syscall.SIGTERM)
	h.gone(ends)
	h.gone(eats)
	h.systemctl("start", "berth")
	node.ExpectExit(t, h.measured(ends), 42, "Error")
	node.ExpectExit(t, h.measured(eats), 137, "OOMKilled")
	h.expectRunning(runs, runsPid)
	if _, err := h.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
		t.Fatal(err)
	}
	h.gone(runs)
}

// An OCI runtime that is killed after it has made a scope leaves it, with what runs in it. berth
// stops such a scope, so that nothing runs that nobody knows of.
//
// PROPERTIES 6.
func TestALeftOverScopeIsStopped(t *testing.T) {
	dir := t.TempDir()
	wrapper, fail := dir+"/runc", dir+"/fail"
	script := `#!/bin/sh
for id; do :; done
case " $* " in *" create "*)
  if [ -e ` + fail + ` ]; then
    systemd-run --scope --quiet --unit "cri-containerd-$id.scope" sh -c 'trap "" TERM; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 &
    until systemctl -q is-active "cri-containerd-$id.scope"; do sleep 0.1; done
    kill -9 $$
  fi
esac
exec /usr/local/libexec/berth/runc "$@"
`
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := startInSlices(t, "binary = '"+wrapper+"'\n")
	cfg := h.PodConfig()
	pod := h.Pod(cfg)
	id := h.Create(pod, cfg, node.ContainerConfig("c", "sh", "-c", waiting))
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("a container was started whose runtime was killed")
	}
	h.gone(id)
	if _, err := h.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
}
