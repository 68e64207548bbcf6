// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroup"
	"berth/test/node"
)

// heldConfig is the configuration of a container whose init is traced by its child, and held at its
// exit, with no more than a pod of the restricted standard may do.
func heldConfig(name string) *runtimeapi.ContainerConfig {
	cfg := node.ContainerConfig(name, "/held")
	cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/held", HostPath: faulty, Readonly: true}}
	sec := cfg.Linux.SecurityContext
	sec.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	sec.NoNewPrivs = true
	sec.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
	return cfg
}

// endHeld ends what test holds with each call that ends something.
func endHeld(t *testing.T, n *node.Node, pod, id, way string) {
	t.Helper()
	n.Within(10*time.Second, way, func() node.Span {
		began := time.Now()
		var err error
		switch way {
		case "stop":
			_, err = n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1})
		case "remove":
			_, err = n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		case "stop the pod":
			_, err = n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
		default:
			_, err = n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		}
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		return node.Span{From: began, To: time.Now()}
	})
}

// expectHeld fails unless the timeline says what kept a container from its end.
func expectHeld(t *testing.T, n *node.Node, id, by string) {
	t.Helper()
	for _, e := range n.History(id) {
		if e.Kind == "EndHeld" {
			if !strings.Contains(e.Detail, by) || e.Error != "" {
				t.Errorf("what keeps it from its end: %+v, want %s", e, by)
			}
			return
		}
	}
	t.Errorf("the timeline does not say what kept %s from its end", id)
}

// PROPERTIES 51: a child traces init and holds it at its exit, which a pod of the restricted
// standard may do. No stop and no removal ever returned, also after a restart of berth.
func TestAnInitThatItsChildHoldsIsEnded(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	for _, way := range []string{"stop", "remove", "stop the pod", "remove the pod", "restart"} {
		t.Run(way, func(t *testing.T) {
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			id := n.Run(pod, cfg, heldConfig("held"))
			n.Until("its init is traced", func() bool { return strings.Contains(n.Log(id), "held") })
			if way == "restart" {
				n.Berth.Kill(syscall.SIGKILL)
				n.StartBerth()
			}
			endHeld(t, n, pod, id, way)
			expectHeld(t, n, id, "traced by process")
			if way == "stop" || way == "stop the pod" {
				node.ExpectExit(t, n.Container(id), 137, "Error")
			}
		})
	}
	n.RemoveAll(t.Context())
}

// PROPERTIES 55: the group of a container is frozen, or one below it, its pod's, or with cgroup v1
// one that has nothing to do with it: the container is stopped, removed, and so is its pod. With
// cgroup v1 that never ended, and nothing said why.
func TestAFrozenContainerIsEnded(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	places := []string{"own", "below", "above"}
	if !cgroup.V2() {
		places = append(places, "elsewhere")
	}
	for _, way := range []string{"stop", "remove the pod"} {
		for _, where := range places {
			t.Run(way+", "+where, func(t *testing.T) {
				cfg := n.PodConfig()
				cfg.Linux.CgroupParent += "/" + cfg.GetMetadata().GetName()
				pod := n.Pod(cfg)
				id := n.Run(pod, cfg, node.ContainerConfig("frozen", "sleep", "1000"))
				at := freeze(t, n.Pid(id), where)
				endHeld(t, n, pod, id, way)
				if !cgroup.V2() { // there it ends at once
					expectHeld(t, n, id, "is frozen by cgroup "+at)
				}
				if way == "stop" {
					node.ExpectExit(t, n.Container(id), 137, "Error")
					endHeld(t, n, pod, id, "remove the pod")
				}
				for _, d := range node.Groups(cfg.Linux.CgroupParent) { // the kubelet would
					node.RemoveGroup(d)
				}
			})
		}
	}
}

// PROPERTIES 55: a command in a container that is frozen, in whichever group, ends at its deadline,
// with the reason, and leaves nothing behind; once it is thawed, commands run.
func TestACommandInAFrozenContainerEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	places := []string{"own", "below", "above"}
	if !cgroup.V2() {
		places = append(places, "elsewhere")
	}
	for _, where := range places {
		t.Run(where, func(t *testing.T) {
			cfg := n.PodConfig()
			cfg.Linux.CgroupParent += "/" + cfg.GetMetadata().GetName()
			pod := n.Pod(cfg)
			id := n.Run(pod, cfg, node.ContainerConfig("frozen", "sleep", "1000"))
			at := freeze(t, n.Pid(id), where)
			command := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 2}
			n.Within(10*time.Second, "a command", func() node.Span {
				began := time.Now()
				_, err := n.ExecSync(t.Context(), command)
				if where == "below" || where == "elsewhere" { // the command is not in that group
					if err != nil {
						t.Errorf("beside a process that is frozen: %v", err)
					}
				} else if err == nil || !strings.Contains(err.Error(), "frozen by cgroup") && !strings.Contains(err.Error(), "paused container") {
					t.Errorf("in a container that is frozen: %v", err)
				}
				return node.Span{From: began, To: time.Now()}
			})
			thawed, file := "THAWED", "freezer.state"
			if cgroup.V2() {
				thawed, file = "0", "cgroup.freeze"
			}
			if where == "above" {
				at = filepath.Dir(at)
			}
			if err := os.WriteFile(filepath.Join(at, file), []byte(thawed), 0); err != nil {
				t.Fatal(err)
			}
			if r, err := n.ExecSync(t.Context(), command); err != nil || r.GetExitCode() != 0 {
				t.Errorf("once it is thawed: %v %v", r, err)
			}
			endHeld(t, n, pod, id, "remove the pod")
			for _, d := range node.Groups(cfg.Linux.CgroupParent) { // the kubelet would
				node.RemoveGroup(d)
			}
		})
	}
}

// PROPERTIES 55: what a container uses in a group that it has made below its own counts, also where
// it sees the host's groups.
func TestTheUsageOfAGroupBelowCounts(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	const memory = 32 << 20
	for _, privileged := range []bool{false, true} {
		t.Run(fmt.Sprintf("privileged=%v", privileged), func(t *testing.T) {
			cfg := n.PodConfig()
			cfg.Linux.SecurityContext.Privileged = privileged
			c := node.ContainerConfig("nested", "sh", "-c",
				"echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; dd if=/dev/zero of=/dev/shm/used bs=1M count=32 2>/dev/null; echo filled; while :; do :; done")
			c.Linux.SecurityContext.Privileged = privileged
			id := n.Run(n.Pod(cfg), cfg, c)
			ready(n, id)
			pid := strconv.Itoa(n.Pid(id))
			own, err := cgroup.Of(uint32(n.Pid(id)))
			if err != nil {
				t.Fatal(err)
			}
			groups := []string{own}
			if !cgroup.V2() {
				groups = append(groups, strings.Replace(own, "/memory/", "/cpuacct/", 1), strings.Replace(own, "/memory/", "/pids/", 1))
			}
			for _, dir := range groups {
				below := filepath.Join(dir, "below")
				if err := errors.Join(os.Mkdir(below, 0o755), os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(pid), 0)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"touch", "/tmp/go"}}); err != nil {
				t.Fatal(err)
			}
			n.Until("the memory is filled", func() bool { return strings.Contains(n.Log(id), "filled") })
			cpu := func() (ns, mem uint64) {
				r, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
				if err != nil {
					t.Fatal(err)
				}
				return r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue(), r.GetStats().GetMemory().GetWorkingSetBytes().GetValue()
			}
			before, used := cpu()
			if used < memory {
				t.Errorf("%d bytes are used", used)
			}
			n.Until("its processor time grows", func() bool { after, _ := cpu(); return after > before })
		})
	}
	n.RemoveAll(t.Context())
}

// freeze freezes a process by its own group in the hierarchy that freezes, by one below that it is
// moved to, by the one above, or by another one. It returns the group that the process is in.
func freeze(t *testing.T, pid int, where string) (at string) {
	t.Helper()
	dir, err := cgroup.Of(uint32(pid))
	if err != nil {
		t.Fatal(err)
	}
	file, frozen := "cgroup.freeze", "1"
	if !cgroup.V2() {
		file, frozen = "freezer.state", "FROZEN"
		dir = strings.Replace(dir, "/memory/", "/freezer/", 1)
	}
	at = dir
	switch where {
	case "below":
		at = filepath.Join(dir, "below")
	case "above":
		dir = filepath.Dir(dir)
	case "elsewhere":
		at = filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(dir))), "berth-test-"+filepath.Base(dir))
		t.Cleanup(func() { node.RemoveGroup(at) })
	}
	if where == "below" || where == "elsewhere" {
		dir = at
		if err := errors.Join(os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(at, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(frozen), 0); err != nil {
		t.Fatal(err)
	}
	return at
}
