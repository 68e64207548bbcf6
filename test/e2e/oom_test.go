// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroup"
	"berth/test/node"
)

// PROPERTIES 36: a child is killed by the OOM killer and the program goes on. That is counted, the
// next berth knows it, and the end that comes later is not OOMKilled. Whose limit was reached is in
// the message of one that is.
func TestAnOOMKillThatAContainerSurvivesDoesNotExplainItsEnd(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	eats := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		return n.Run(pod, cfg, c)
	}
	const survive = "tail /dev/zero; trap 'exit 1' TERM; echo ready; while :; do sleep 0.05; done"
	itself, killed, away := eats("itself", survive), eats("killed", survive), eats("away", survive)
	init := eats("init", "exec tail /dev/zero")
	survived := func(id string) bool {
		st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		return err == nil && strings.HasPrefix(st.GetStatus().GetMessage(), "1 OOM kill survived")
	}
	for _, id := range []string{itself, killed, away} {
		n.Until("the kill is counted", func() bool { return survived(id) })
	}
	node.ExpectExit(t, n.Ended(init), 137, "OOMKilled")
	if got := n.Ended(init).GetMessage(); got != "the OOM killer fired: the container reached its memory limit" {
		t.Errorf("the message is %q", got)
	}
	for id, sig := range map[string]syscall.Signal{itself: syscall.SIGTERM, killed: syscall.SIGKILL} {
		if err := syscall.Kill(n.Pid(id), sig); err != nil {
			t.Fatal(err)
		}
	}
	node.ExpectExit(t, n.Ended(itself), 1, "Error")
	node.ExpectExit(t, n.Ended(killed), 137, "Error")

	pid := n.Pid(away)
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	if !survived(away) {
		t.Error("the next berth does not know of the kill")
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Measured(away), 1, "Error")
}

// PROPERTIES 10 and 55: the OOM killer fires in a group that a container has made below its own. With
// cgroup v1, which counts for each group alone, that was told as Error. A kill in such a group that the
// container survives is counted, also if the group is gone, and does not explain a later end.
func TestAnOOMKillBelowTheGroupOfAContainer(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	run := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; "+script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
		return n.Run(pod, cfg, c)
	}
	// below moves the init of a container, and so what it starts, to a group below, and lets it go on.
	below := func(id string) (dir string, remove func()) {
		pid := n.Pid(id)
		own, err := cgroup.Of(uint32(pid))
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(own, "below", "below")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if !cgroup.V2() { // where a group below has no controller until its parent is empty
			if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("16777216"), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
		if r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"touch", "/tmp/go"}}); err != nil || r.GetExitCode() != 0 {
			t.Fatal(r, err)
		}
		return dir, func() {
			if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
				t.Fatal(err)
			}
			n.Until("the groups below are gone", func() bool {
				return errors.Join(os.Remove(dir), os.Remove(filepath.Dir(dir))) == nil
			})
		}
	}
	init := run("init", "exec tail /dev/zero")
	below(init)
	node.ExpectExit(t, n.Ended(init), 137, "OOMKilled")
	if got := n.Ended(init).GetMessage(); got != "the OOM killer fired: the container reached its memory limit" {
		t.Errorf("the message is %q", got)
	}
	child := run("child", "tail /dev/zero; exit $?")
	below(child)
	node.ExpectExit(t, n.Ended(child), 137, "OOMKilled")

	survives := run("survives", "tail /dev/zero; while :; do sleep 0.05; done")
	_, remove := below(survives)
	n.Until("the kill is counted", func() bool {
		return strings.HasPrefix(n.Container(survives).GetMessage(), "1 OOM kill survived")
	})
	remove()
	if err := syscall.Kill(n.Pid(survives), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(survives), 137, "Error")
	if got := n.Ended(survives).GetMessage(); strings.Contains(got, "OOM killer fired") {
		t.Errorf("the message is %q", got)
	}
}

// One container of a pod eats what the pod may have, and the OOM killer ends another: berth why names
// the one that ate it.
func TestWhyNamesTheContainerThatAteThePodsMemory(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	run := func(name, script string, score int64) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: score}
		return n.Run(pod, cfg, c)
	}
	victim := run("victim", `x=$(head -c 9000000 /dev/zero | tr '\0' a); touch /tmp/ready; sleep 1000; true`, 1000)
	eater := run("eater", "until [ -e /tmp/go ]; do sleep 0.05; done; exec tail /dev/zero", 0)
	n.Until("the victim has its memory", func() bool {
		r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: victim, Cmd: []string{"test", "-e", "/tmp/ready"}})
		return err == nil && r.GetExitCode() == 0
	})
	own, err := cgroup.Of(uint32(n.Pid(victim)))
	if err != nil {
		t.Fatal(err)
	}
	limit := "memory.limit_in_bytes"
	if cgroup.V2() {
		limit = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(own), limit), []byte("67108864"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: eater, Cmd: []string{"touch", "/tmp/go"}}); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(victim), 137, "OOMKilled")
	var said []byte
	n.Until("why names the eater", func() bool {
		said, _ = n.Command("why", victim).CombinedOutput()
		return strings.Contains(string(said), "the pod reached its memory limit") && strings.Contains(string(said), "Most of it was used by eater beside it, ")
	})
}
