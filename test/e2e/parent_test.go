// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// hostile builds the program of test/exec under a name by which its processes are found, and mounts it.
func hostile(t *testing.T) (mount *runtimeapi.Mount, name string) {
	t.Helper()
	dir := t.TempDir()
	name = fmt.Sprintf("hostile%d", os.Getpid())
	if out, err := command.New(t, "gcc", "-std=c11", "-static", "-O1", "-o", filepath.Join(dir, name), "../exec/testdata/probe.c").CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v: %s", err, out)
	}
	return &runtimeapi.Mount{HostPath: dir, ContainerPath: "/hostile", Readonly: true}, name
}

// named lists the processes that have a name, zombies included.
func named(name string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == name {
			st, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "stat"))
			found = append(found, string(st))
		}
	}
	return found
}

// PROPERTIES 56: a probe that had made a child of its own parent, by clone with CLONE_PARENT, left berth a
// child that it did not reap: its container was RUNNING for ever, and could be neither stopped nor removed.
func TestAContainerEndsWhateverItsProbesLeave(t *testing.T) {
	execs(t, false, func(t *testing.T, n *node.Node) {
		mount, name := hostile(t)
		for mode, pid := range map[string]runtimeapi.NamespaceMode{
			"its own PID namespace": runtimeapi.NamespaceMode_CONTAINER,
			"that of its pod":       runtimeapi.NamespaceMode_POD,
			"the host's":            runtimeapi.NamespaceMode_NODE,
		} {
			cfg := n.PodConfig()
			cfg.Linux.SecurityContext.NamespaceOptions.Pid = pid
			pod := n.Pod(cfg)
			c := node.ContainerConfig("c", "/hostile/"+name, "pause")
			c.Linux.SecurityContext.NamespaceOptions.Pid = pid
			c.Mounts = []*runtimeapi.Mount{mount}
			id := n.Run(pod, cfg, c)
			for _, how := range []string{
				"a sibling that ends", "a sibling that ends later", "orphans that end", "stay: siblings",
				"stay: a sibling that executes", "stay: an orphan", "stay: vfork", "stay: without a signal",
				"stay: a reaper of its own", "stay: traced at its exit",
			} {
				got, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/hostile/" + name, "leave", how}, Timeout: 2})
				want := map[string]int32{"stay: vfork": 137}[how]
				if want == 0 {
					want = 9
				}
				if how == "stay: traced at its exit" {
					if err == nil && got.GetExitCode() != want {
						t.Errorf("%s, %s: it ended with %d", mode, how, got.GetExitCode())
					}
				} else if err != nil || got.GetExitCode() != want {
					t.Errorf("%s, %s: got %v %v", mode, how, got, err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 0}); err != nil {
				t.Errorf("%s: stop: %v", mode, err)
			}
			if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				t.Errorf("%s: the container is %s", mode, st.GetState())
			}
			if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Errorf("%s: remove: %v", mode, err)
			}
			if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Errorf("%s: stop the pod: %v", mode, err)
			}
			if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Errorf("%s: remove the pod: %v", mode, err)
			}
			cancel()
			n.Until("nothing is left of what the probes have made", func() bool { return len(named(name)) == 0 })
		}
		nothingLeft(n)
		n.Until("nothing is left that has made a probe's process", func() bool { return len(named("berth-exec")) == 0 })
	})
}

// PROPERTIES 56: root in a container changed the mode, the owner and the times of the host's null device,
// which an exec got as its standard input: for the whole node. It changes no inode of the host's.
func TestAContainerChangesNoNullDeviceOfTheHost(t *testing.T) {
	execs(t, false, func(t *testing.T, n *node.Node) {
		mount, name := hostile(t)
		look := func() string {
			var s syscall.Stat_t
			if err := syscall.Stat(os.DevNull, &s); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("mode %o owner %d:%d times %d %d", s.Mode, s.Uid, s.Gid, s.Mtim.Sec, s.Ctim.Nano())
		}
		var was syscall.Stat_t
		_ = syscall.Stat(os.DevNull, &was)
		t.Cleanup(func() {
			if now := look(); !strings.Contains(now, fmt.Sprintf("mode %o owner %d:%d ", was.Mode, was.Uid, was.Gid)) {
				_ = os.Chown(os.DevNull, int(was.Uid), int(was.Gid))
				_ = syscall.Chmod(os.DevNull, was.Mode&0o7777)
			}
		})
		before := look()
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "/hostile/"+name, "pause")
		c.Mounts = []*runtimeapi.Mount{mount}
		id := n.Run(pod, cfg, c)
		first := node.ContainerConfig("first", "/hostile/"+name, "touch")
		first.Mounts = c.Mounts
		if st := n.Ended(n.Run(pod, cfg, first)); st.GetExitCode() != 9 {
			t.Errorf("the container ended with %d", st.GetExitCode())
		}
		got, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/hostile/" + name, "touch"}})
		if err != nil || got.GetExitCode() != 9 || !strings.Contains(string(got.GetStdout()), "0: type 20000 rdev 103") {
			t.Fatalf("got %v %v", got, err)
		}
		if after := look(); after != before {
			t.Errorf("the host's null device was %s and is %s: %s", before, after, got.GetStdout())
		}
		scripts := answers()
		delete(scripts, "id -u; id -g; echo $COLOUR; pwd")
		delete(scripts, "grep -E 'Groups|CapBnd' /proc/self/status")
		expectAnswers(t, n, id, scripts) // the output of others still comes
	})
}
