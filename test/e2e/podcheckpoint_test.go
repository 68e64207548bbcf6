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

	"berth/test/node"
)

// PROPERTIES 32: all containers of a pod go on in another pod: their memory, their files, and their
// output. Their exit codes are exact.
func TestARestoredPodGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := node.Start(t, node.Options{Runc: restorer(t, dir)})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	sandbox := n.PodConfig()
	pod := n.Pod(sandbox)
	req := &runtimeapi.RestorePodRequest{CheckpointPath: t.TempDir(), Config: n.PodConfig()}
	var ids, names []string
	var before []int
	for _, name := range []string{"one", "two"} {
		cfg := node.ContainerConfig(name, "sh", "-c", counts)
		ids = append(ids, n.Run(pod, sandbox, cfg))
		req.ContainerConfigs = append(req.ContainerConfigs, cfg)
	}
	for _, id := range ids {
		n.Until("it counts", func() bool { _, _, last := counting(n, id); return last > 5 })
	}
	if _, err := n.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: pod, OutputPath: req.CheckpointPath, ContainerIds: ids}); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		_, _, last := counting(n, id)
		n.Until("it goes on after the checkpoint", func() bool { _, _, now := counting(n, id); return now > last })
		name, _, last := counting(n, id)
		names, before = append(names, name), append(before, last)
	}
	if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}

	req.ContainerConfigs[1].Args = append(req.ContainerConfigs[1].Args, "more")
	if _, err := n.RestorePod(ctx, req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `container "two": args`) {
		t.Errorf("other arguments: %v", err)
	}
	req.ContainerConfigs[1].Args = req.ContainerConfigs[1].Args[:len(req.ContainerConfigs[1].Args)-1]
	resp, err := n.RestorePod(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetRestoredContainers()) != len(ids) {
		t.Fatalf("%v", resp)
	}
	if err := os.RemoveAll(req.CheckpointPath); err != nil { // it was unpacked
		t.Fatal(err)
	}
	for i, c := range resp.GetRestoredContainers() {
		if st := n.Container(c.GetContainerId()); st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || st.GetMetadata().GetName() != c.GetName() {
			t.Errorf("%v", st)
		}
		if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
			t.Fatal(err)
		}
		n.Until("it goes on", func() bool { _, _, last := counting(n, c.GetContainerId()); return last > before[i] })
		now, first, _ := counting(n, c.GetContainerId())
		if first < 2 || first > before[i]+1 {
			t.Errorf("it went on with %d after %d", first, before[i])
		}
		if guest() && now != names[i] {
			t.Errorf("it is %s, and was %s: it was started anew", now, names[i])
		}
		term(t, n.Pid(c.GetContainerId()))
		node.ExpectExit(t, n.Ended(c.GetContainerId()), 42, "Error")
	}
}

// PROPERTIES 28: berth is killed while it checkpoints a pod: all containers go on.
func TestKill9WhileAPodIsCheckpointed(t *testing.T) {
	t.Parallel()
	hang := filepath.Join(t.TempDir(), "hang")
	n := node.Start(t, node.Options{Runc: fakeCRIU(t, hang)})
	sandbox := n.PodConfig()
	pod := n.Pod(sandbox)
	ticks := func(id string) int { return strings.Count(n.Log(id), "tick") }
	var ids []string
	for _, name := range []string{"one", "two"} {
		id := n.Run(pod, sandbox, node.ContainerConfig(name, "sh", "-c", "while :; do echo tick; sleep 0.1; done"))
		n.Until("it has begun", func() bool { return ticks(id) > 0 })
		ids = append(ids, id)
	}
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = n.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: pod, OutputPath: t.TempDir(), ContainerIds: ids})
	}()
	for _, id := range ids {
		untilPaused(t, n, id)
	}
	n.Berth.Kill(syscall.SIGKILL)
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	n.StartBerth()
	for _, id := range ids {
		before := ticks(id)
		n.Until("it goes on", func() bool { return ticks(id) > before })
	}
	<-done
	untilNoCheckpoint(n)
}
