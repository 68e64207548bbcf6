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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kill -9 of berth with containers that run on and containers that end while it is away: nothing is unknown, no byte
// of a log is lost or doubled, and the exits that nobody saw are told.
func TestKill9AndBack(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		const count = 20000
		_, talks := n.sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; sleep 1000", count))
		_, ends := n.sh("sleep 1; exit 42")
		podID, runs := n.sh("sleep 1000")
		n.berth.kill(syscall.SIGKILL)
		for range 3 { // also while it comes up
			n.startBerth()
			n.berth.kill(syscall.SIGKILL)
		}
		time.Sleep(1200 * time.Millisecond) // the second one ends with nobody there
		n.startBerth()
		expectExit(t, n.ended(ends), 42, "Error")
		if st := n.status(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%v", st)
		}
		n.until("all lines", func() bool { return strings.HasSuffix(n.log(talks), fmt.Sprintf("line %d\n", count-1)) })
		var want strings.Builder
		for i := range count {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if got := n.log(talks); got != want.String() {
			t.Errorf("the log has %d bytes, %d were written", len(got), want.Len())
		}
		stream, err := n.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			ev, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if ev.GetContainerId() == ends && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				break
			}
		}
		// The one that ran on ends as if nothing had been.
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
			t.Fatal(err)
		}
		expectExit(t, n.status(runs), 137, "Error")
		if st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: podID}); err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("%v %v", st, err)
		}
	})
}

// kill -9 at random instants while pods come and go: what is left afterwards can be removed, and nothing leaks.
func TestKill9UnderChurn(t *testing.T) {
	n := start(t, options{})
	for round := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				cfg := podConfig(n)
				resp, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
				if err != nil {
					continue
				}
				c, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: resp.GetPodSandboxId(), SandboxConfig: cfg, Config: containerConfig("c", "sh", "-c", "exit 5")})
				if err != nil {
					continue
				}
				_, _ = n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
				_, _ = n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: resp.GetPodSandboxId()})
			}
		}()
		time.Sleep(time.Duration(150+97*round) * time.Millisecond)
		n.berth.kill(syscall.SIGKILL)
		cancel()
		<-done
		n.startBerth()
		list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.GetContainers() {
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
				t.Errorf("UNKNOWN: %v", c)
			}
			st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			if err == nil && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && st.GetStatus().GetReason() == "Unknown" {
				t.Errorf("a code was lost: %v", st)
			}
		}
	}
}

// containerd is killed and comes back: berth stays, exits meanwhile are told at once by the kernel.
func TestContainerdDiesAndComesBack(t *testing.T) {
	n := start(t, options{external: true})
	_, ends := n.sh("sleep 1; exit 42")
	_, runs := n.sh("sleep 1000")
	for range 2 {
		n.ctrd.kill(syscall.SIGKILL)
		expectExit(t, n.ended(ends), 42, "Error") // containerd is not there to say so
		n.startContainerd()
		n.until("berth is connected again", func() bool {
			st, err := n.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{})
			return err == nil && st.GetStatus().GetConditions()[0].GetStatus()
		})
		_, after := n.sh("exit 7")
		expectExit(t, n.ended(after), 7, "Error")
	}
	if st := n.status(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
}

// PROPERTIES 5: the shim is killed, containerd is gone, the process ends later, with 42.
func TestTheCodeSurvivesShimAndContainerd(t *testing.T) {
	n := start(t, options{external: true})
	_, id := n.sh("sleep 1.5; exit 42")
	n.ctrd.kill(syscall.SIGKILL)
	killShims(t, n)
	if st := n.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("a process that outlives its shim was reported as %v", st)
	}
	st := n.ended(id)
	if n.exact() {
		expectExit(t, st, 42, "Error")
	} else if st.GetExitCode() != 42 && (st.GetExitCode() != 255 || st.GetReason() != "Unknown") {
		t.Errorf("this kernel may not know the code, but %d %s was invented", st.GetExitCode(), st.GetReason())
	}
	n.startContainerd()
}

// exact reports whether the kernel itself can tell exit codes here (Linux 6.15).
func (n *node) exact() bool {
	n.t.Helper()
	st, err := n.RuntimeServiceClient.Status(n.t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return st.GetInfo()["kernelWitnessExact"] == "true"
}

func killShims(t *testing.T, n *node) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	killed := 0
	for _, p := range procs {
		b, _ := os.ReadFile(p)
		if strings.Contains(string(b), "containerd-shim-runc-v2") && strings.Contains(string(b), n.dir+"/") {
			var pid int
			if _, err := fmt.Sscanf(p, "/proc/%d/", &pid); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				killed++
			}
		}
	}
	if killed == 0 {
		t.Fatal("no shim was found")
	}
}

// PROPERTIES 1: an OCI runtime that hangs in delete. The exit is visible at once, Stop returns, Remove says what it waits for
// and goes on by itself.
func TestTheTruthDoesNotWaitForASlowDelete(t *testing.T) {
	dir := t.TempDir()
	wrapper, hang := filepath.Join(dir, "runc"), filepath.Join(dir, "hang")
	script := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = delete ] && while [ -e %s ]; do sleep 0.05; done; done\nexec %s \"$@\"\n", hang, filepath.Join(root(t), "build/libexec/runc"))
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := start(t, options{runc: wrapper, args: []string{"--set", "lanes.attempt_timeout=2s"}})
	defer os.Remove(hang)
	_, ends := n.sh("exit 42")
	expectExit(t, n.ended(ends), 42, "Error")
	_, runs := n.sh("sleep 1000")
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
		t.Fatal(err)
	}
	expectExit(t, n.status(runs), 137, "Error")
	_, other := n.sh("exit 3") // nobody else waits
	expectExit(t, n.ended(other), 3, "Error")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: runs})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("got %v", err)
	}
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: runs}); err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 14: a child that outlives init in a shared PID namespace, and one that holds stdout open.
func TestWhatOutlivesInitIsEndedInASharedPIDNamespace(t *testing.T) {
	n := start(t, options{})
	cfg := podConfig(n)
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	pod := n.pod(cfg)
	c := containerConfig("c", "sh", "-c", "(while :; do sleep 0.05; done) & exit 9")
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	id := n.run(pod, cfg, c)
	expectExit(t, n.ended(id), 9, "Error")
}
