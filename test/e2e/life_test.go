// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

func TestAPodLivesAndDies(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		ctx := t.Context()
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		st, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod[:13], Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || st.GetStatus().GetNetwork().GetIp() == "" {
			t.Fatalf("%v", st)
		}
		wants := []struct {
			script string
			code   int32
			reason string
			memory int64
		}{
			{"echo out; echo err >&2", 0, "Completed", 0},
			{"exit 42", 42, "Error", 0},
			{"sh -c 'kill -9 $$'; exit $?", 137, "Error", 0}, // killed, and not by the OOM killer
			{"exec tail /dev/zero", 137, "OOMKilled", 16 << 20},
			{"hostname; cat /etc/resolv.conf >/dev/null; id -u; ls /dev/shm", 0, "Completed", 0},
		}
		ids := make([]string, len(wants))
		for i, w := range wants {
			c := node.ContainerConfig(fmt.Sprint("c", i), "sh", "-c", w.script)
			if w.memory > 0 {
				c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: w.memory}
			}
			ids[i] = n.Run(pod, cfg, c)
		}
		for i, w := range wants {
			node.ExpectExit(t, n.Ended(ids[i]), w.code, w.reason)
		}
		if got := n.Log(ids[0]); !strings.Contains(got, "out\n") || !strings.Contains(got, "err\n") {
			t.Errorf("log %q", got)
		}
		if got := n.Log(ids[4]); got != cfg.GetHostname()+"\n0\n" {
			t.Errorf("log %q", got)
		}
		list, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod, LabelSelector: map[string]string{"container": "c1"}}})
		if err != nil || len(list.GetContainers()) != 1 || list.GetContainers()[0].GetId() != ids[1] {
			t.Errorf("%v %v", list, err)
		}
		none, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_CREATED}}})
		if err != nil || len(none.GetContainers()) != 0 {
			t.Errorf("%v %v", none, err)
		}
		if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
		pods, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: cfg.GetLabels()}})
		if err != nil || len(pods.GetItems()) != 1 || pods.GetItems()[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("%v %v", pods, err)
		}
		for range 2 { // idempotent
			if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
		}
		_, err = n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		if status.Code(err) != codes.NotFound {
			t.Errorf("got %v", err)
		}
	})
}

func TestVerboseStatusIsWhatCrictlReads(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sleep", "1000"))
	resp, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		SandboxID, SnapshotKey, Image, RuntimeType string
		Pid                                        int
		RuntimeSpec                                map[string]any
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if info.SandboxID != pod || info.SnapshotKey == "" || info.Image != node.Busybox || info.Pid == 0 || info.RuntimeSpec["process"] == nil {
		t.Fatalf("%+v", info)
	}
	n.Until("the process is that of the container", func() bool { // runc returns before it has executed the command
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", info.Pid))
		return err == nil && strings.HasPrefix(string(b), "sleep\x001000")
	})
	if st := n.Container(id); st.GetImageId() == "" || st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGTERM {
		t.Fatalf("%v", st)
	}
}

func TestStopAsksThenKills(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, obeys := n.Sh("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	_, ignores := n.Sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
	for id, code := range map[string]int32{obeys: 3, ignores: 137} {
		n.Until("ready", func() bool { return n.Log(id) != "" })
		for range 2 { // the second finds it dead
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil {
				t.Fatal(err)
			}
			node.ExpectExit(t, n.Container(id), code, "Error") // visible at once
		}
	}
	if !strings.Contains(n.Log(obeys), "bye") {
		t.Errorf("log %q", n.Log(obeys))
	}
}

func TestRemoveOfARunningContainerIsForced(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
}

func TestThirtyPodsAtOnce(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			cfg := n.PodConfig()
			resp, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				t.Error(err)
				return
			}
			c, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
				PodSandboxId: resp.GetPodSandboxId(), SandboxConfig: cfg, Config: node.ContainerConfig("c", "sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)),
			})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
				t.Error(err)
				return
			}
			reason := "Error"
			if i == 0 {
				reason = "Completed"
			}
			node.ExpectExit(t, n.Ended(c.GetContainerId()), int32(i), reason)
			if got := n.Log(c.GetContainerId()); got != fmt.Sprintln(i) {
				t.Errorf("log %q", got)
			}
		})
	}
	wg.Wait()
}

func TestEventsComeInOrderWithTheWholePod(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	stream, err := n.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pod, id := n.Sh("exit 7")
	n.Ended(id)
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	var stamp int64
	next := runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	for next <= runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetPodSandboxStatus().GetId() != pod || ev.GetCreatedAt() <= stamp {
			t.Fatalf("after %d: %v", stamp, ev)
		}
		stamp = ev.GetCreatedAt()
		if ev.GetContainerId() != id {
			continue
		}
		if ev.GetContainerEventType() != next {
			t.Fatalf("got %v, want %v", ev.GetContainerEventType(), next)
		}
		if next == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && (len(ev.GetContainersStatuses()) != 1 || ev.GetContainersStatuses()[0].GetExitCode() != 7) {
			t.Fatalf("%v", ev)
		}
		next++
	}
}

func TestBadInputIsRefusedInWords(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	ctx := t.Context()
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	n.Create(pod, cfg, node.ContainerConfig("taken", "true"))
	stopped := n.Pod(n.PodConfig())
	if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: stopped}); err != nil {
		t.Fatal(err)
	}
	run := func(c *runtimeapi.PodSandboxConfig, handler string) error {
		_, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: c, RuntimeHandler: handler})
		return err
	}
	create := func(pod string, edit func(*runtimeapi.ContainerConfig)) error {
		c := node.ContainerConfig("x", "true")
		if edit != nil {
			edit(c)
		} else {
			c = nil
		}
		_, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
		return err
	}
	same := func(*runtimeapi.ContainerConfig) {}
	badName := n.PodConfig()
	badName.Metadata.Name = "../../etc"
	for _, tt := range []struct {
		name string
		err  error
		code codes.Code
		say  string
	}{
		{"no config", run(nil, ""), codes.InvalidArgument, "config is missing"},
		{"no metadata", run(&runtimeapi.PodSandboxConfig{}, ""), codes.InvalidArgument, "metadata"},
		{"name that escapes", run(badName, ""), codes.InvalidArgument, "../../etc"},
		{"duplicate pod", run(cfg, ""), codes.AlreadyExists, pod},
		{"unknown handler", run(n.PodConfig(), "kata"), codes.InvalidArgument, "kata"},
		{"no container config", create(pod, nil), codes.InvalidArgument, "config is missing"},
		{"unknown image", create(pod, func(c *runtimeapi.ContainerConfig) { c.Image.Image = "localhost/nothing:1" }), codes.NotFound, "pull or import"},
		{"unknown pod", create("feedbeef", same), codes.NotFound, "feedbeef"},
		{"stopped pod", create(stopped, same), codes.FailedPrecondition, "not READY"},
		{"duplicate container", create(pod, func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = "taken" }), codes.AlreadyExists, "taken"},
		{"log that escapes", create(pod, func(c *runtimeapi.ContainerConfig) { c.LogPath = "../../x" }), codes.InvalidArgument, "leaves"},
		{"unknown user", create(pod, func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "nobody-here" }), codes.InvalidArgument, "nobody-here"},
		{"privileged in a pod that is not", create(pod, func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.Privileged = true }), codes.InvalidArgument, "privileged"},
	} {
		if status.Code(tt.err) != tt.code || !strings.Contains(tt.err.Error(), tt.say) {
			t.Errorf("%s: %v, want %v with %q", tt.name, tt.err, tt.code, tt.say)
		}
	}
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: "feedbeef"}); status.Code(err) != codes.NotFound {
		t.Errorf("start of nothing: %v", err)
	}
	if _, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("exec of nothing: %v", err)
	}
	id := n.Create(pod, cfg, node.ContainerConfig("no-program", "/no/such/program"))
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("start of no program: %v", err)
	}
	expect := n.Ended(id)
	if expect.GetReason() != "StartError" || expect.GetExitCode() != 128 {
		t.Errorf("%v", expect)
	}
	list, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod}})
	if err != nil || len(list.GetContainers()) != 2 {
		t.Errorf("refused containers were left: %v %v", list, err)
	}
}

func TestTermStopsBerthAndLeavesPodsRunning(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	lives(t, n)
	second := n.SpawnBerth()
	if second.Wait() == 0 || !strings.Contains(second.Output(), "in use by another berth") {
		t.Errorf("a second berth on the same data: %s", second.Output())
	}
	// A stop gives the disk a second, and warns of images that are not there by then.
	n.Until("images are on the disk", func() bool { return strings.Contains(n.Berth.Output(), "images are on the disk") })
	n.Berth.Kill(syscall.SIGTERM)
	if code := n.Berth.Wait(); code != 0 {
		t.Fatalf("ended with %d:\n%s", code, n.Berth.Output())
	}
	for l := range strings.Lines(n.Berth.Output()) {
		if strings.Contains(l, "CAP_SYS_RESOURCE") {
			continue // this host does not give it to root
		}
		if strings.Contains(l, "level=WARN") || strings.Contains(l, "level=ERROR") {
			t.Errorf("on an empty root, or at a clean stop: %s", l)
		}
	}
	n.StartBerth()
	if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("%v", st)
	}
}

// lives lets a pod with one container live and die. The log has at most six lines of it: a node has
// thousands of them each day.
func lives(t *testing.T, n *node.Node) {
	t.Helper()
	pod, id := n.Sh("exit 0")
	n.Ended(id)
	if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	var lines []string
	for l := range strings.Lines(n.Berth.Output()) {
		if strings.Contains(l, pod) || strings.Contains(l, id) {
			lines = append(lines, l)
		}
	}
	if len(lines) > 6 || len(lines) == 0 || strings.Contains(n.Berth.Output(), "shim disconnected") {
		t.Errorf("%d lines of a pod with one container:\n%s", len(lines), strings.Join(lines, ""))
	}
}
