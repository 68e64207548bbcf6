// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 4: berth is killed while the OCI runtime is at work on a start, and the program has begun
// already. The OCI runtime was killed with it, so that the shim did not know of the start: the next
// berth killed the program, and started it a second time.
func TestAProgramIsNotStartedTwiceBecauseBerthWasKilled(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		dir := t.TempDir()
		wrapper, hang := filepath.Join(dir, "runc"), filepath.Join(dir, "hang")
		script := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do\n  [ \"$a\" != start ] || { %[1]s \"$@\"; code=$?; while [ -e %[2]s ]; do sleep 0.05; done; exit $code; }\ndone\nexec %[1]s \"$@\"\n",
			filepath.Join(node.Module(t), "build/libexec/runc"), hang)
		for path, text := range map[string]string{wrapper: script, hang: ""} {
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		n := node.Start(t, node.Options{Runc: wrapper, External: external, Args: withoutPause})
		defer os.Remove(hang)
		marks := t.TempDir()
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "sh", "-c", "echo begun >>/marks/begun; "+exitOnTerm)
		c.Mounts = []*runtimeapi.Mount{{HostPath: marks, ContainerPath: "/marks"}}
		id := n.Create(pod, cfg, c)
		begun := func() string {
			b, _ := os.ReadFile(filepath.Join(marks, "begun"))
			return string(b)
		}
		started := make(chan struct{})
		go func() {
			defer close(started)
			_, _ = n.StartContainer(context.WithoutCancel(t.Context()), &runtimeapi.StartContainerRequest{ContainerId: id})
		}()
		n.Until("the program has begun", func() bool { return begun() != "" })
		n.Berth.Kill(syscall.SIGKILL)
		if external {
			n.Containerd.Kill(syscall.SIGKILL)
			n.StartContainerd()
		}
		<-started
		n.StartBerth()
		if err := os.Remove(hang); err != nil {
			t.Fatal(err)
		}
		n.Until("it runs", func() bool {
			if n.Container(id).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				return true
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
				t.Logf("asked for again: %v", err)
			}
			return false
		})
		n.Until("it is ready", func() bool { return n.Log(id) != "" })
		if got := begun(); got != "begun\n" {
			t.Errorf("the program began more than once: %q", got)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Container(id), 42, "Error")
	})
}
