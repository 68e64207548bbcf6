// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
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

	"berth/api/client"
	"berth/test/node"
)

// kill -9 of berth with containers that run on and containers that end while it is away: nothing is
// unknown, no byte of a log is lost or doubled, and the exits that happened meanwhile are
// published.
func TestKill9AndBack(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		const count = 20000
		_, talks := n.Sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; sleep 1000", count))
		_, ends := n.Sh(exitOnTerm)
		podID, runs := n.Sh("sleep 1000")
		n.Until("the second one is ready", func() bool { return n.Log(ends) != "" })
		pid := n.Pid(ends)
		n.Berth.Kill(syscall.SIGKILL)
		for range 3 { // also while it comes up
			n.StartBerth()
			n.Berth.Kill(syscall.SIGKILL)
		}
		term(t, pid)
		n.Until("the second one has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		n.StartBerth()
		node.ExpectExit(t, n.Measured(ends), 42, "Error")
		if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%v", st)
		}
		n.Until("all lines", func() bool { return strings.HasSuffix(n.Log(talks), fmt.Sprintf("line %d\n", count-1)) })
		var want strings.Builder
		for i := range count {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if got := n.Log(talks); got != want.String() {
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
		node.ExpectExit(t, n.Container(runs), 137, "Error")
		if st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: podID}); err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("%v %v", st, err)
		}
	})
}

// containerd is killed and comes back: berth stays, exits meanwhile are reported at once by the
// kernel.
//
// PROPERTIES 13.
func TestContainerdDiesAndComesBack(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{External: true})
	_, ends := n.Sh(exitOnTerm)
	_, runs := n.Sh("sleep 1000")
	n.Until("it is ready", func() bool { return n.Log(ends) != "" })
	pid := n.Pid(ends)
	for i := range 2 {
		n.Containerd.Kill(syscall.SIGKILL)
		if i == 0 {
			term(t, pid)
		}
		// Containerd is not there to report the code. Where the kernel does not either, the code is
		// unknown until the shim can be asked.
		if st := n.Ended(ends); n.Exact() || st.GetReason() != "Unknown" {
			node.ExpectExit(t, st, 42, "Error")
		}
		n.StartContainerd()
		n.Until("berth is connected again", func() bool {
			st, err := n.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{})
			return err == nil && st.GetStatus().GetConditions()[0].GetStatus()
		})
		_, after := n.Sh("exit 7")
		node.ExpectExit(t, n.Ended(after), 7, "Error")
	}
	n.Until("the code is known", func() bool { return n.Container(ends).GetReason() != "Unknown" })
	node.ExpectExit(t, n.Container(ends), 42, "Error")
	if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
}

// PROPERTIES 5: the shim is killed, containerd is gone, the process ends later, with 42.
func TestTheCodeSurvivesShimAndContainerd(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{External: true})
	_, id := n.Sh(exitOnTerm)
	n.Until("it is ready", func() bool { return n.Log(id) != "" })
	pid := n.Pid(id)
	n.Containerd.Kill(syscall.SIGKILL)
	killShims(t, n)
	if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("a process that outlives its shim was reported as %v", st)
	}
	term(t, pid)
	st := n.Ended(id)
	if n.Exact() {
		node.ExpectExit(t, st, 42, "Error")
	} else if st.GetExitCode() != 42 && (st.GetExitCode() != 255 || st.GetReason() != "Unknown") {
		t.Errorf("this kernel may not know the code, but %d %s was invented", st.GetExitCode(), st.GetReason())
	}
	n.StartContainerd()
}

// PROPERTIES 72: a container ignores its stop signal, and berth is killed in its grace period. The
// next berth kills it at the end of that, though nobody asks again; it ran for ever. Its signal is
// not sent again.
func TestAStopGoesOnAfterBerthIsKilled(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("trap 'echo asked' TERM; while :; do echo tick; sleep 0.1; done")
	n.Until("it is ready", func() bool { return n.Log(id) != "" })
	const grace = 3 * time.Second
	began, cut := time.Now(), make(chan error, 1)
	go func(c *client.Client) {
		_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(grace.Seconds())})
		cut <- err
	}(n.Client)
	n.Until("a second of its grace is over", func() bool {
		_, after, _ := strings.Cut(n.Log(id), "asked")
		return strings.Count(after, "tick") > 10
	})
	n.Berth.Kill(syscall.SIGKILL)
	if err := <-cut; err == nil {
		t.Error("it was stopped before berth was killed")
	}
	n.StartBerth()
	st := n.Ended(id)
	node.ExpectExit(t, st, 137, "Error")
	if took := time.Unix(0, st.GetFinishedAt()).Sub(began); took < grace {
		t.Errorf("it was killed %v after it was asked to end", took)
	}
	if out := n.Log(id); strings.Count(out, "asked") != 1 {
		t.Errorf("it was asked to end other than once:\n%s", out)
	}
	if out, _ := n.Command("why", id).CombinedOutput(); !strings.Contains(string(out), "The call was cut off") {
		t.Errorf("why: %s", out)
	}
}

// exitOnTerm is a script that says when it is ready, and ends with 42 when it gets SIGTERM.
const exitOnTerm = "trap 'exit 42' TERM; echo ready; sleep 1000 & wait"

func term(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func killShims(t *testing.T, n *node.Node) {
	t.Helper()
	shims := n.Shims()
	if len(shims) == 0 {
		t.Fatal("no shim was found")
	}
	for _, pid := range shims {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// PROPERTIES 1: an OCI runtime that hangs in delete. The exit is visible at once, Stop returns,
// Remove says what it waits for and goes on by itself.
func TestTheTruthDoesNotWaitForASlowDelete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wrapper, hang := filepath.Join(dir, "runc"), filepath.Join(dir, "hang")
	script := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = delete ] && while [ -e %s ]; do sleep 0.05; done; done\nexec %s \"$@\"\n", hang, filepath.Join(node.Module(t), "build/libexec/runc"))
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Runc: wrapper})
	defer os.Remove(hang)
	_, ends := n.Sh("exit 42")
	node.ExpectExit(t, n.Ended(ends), 42, "Error")
	_, runs := n.Sh("sleep 1000")
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
		_, id := n.Sh("exec sleep 1000")
		return n.Killed(id)
	})
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Container(runs), 137, "Error")
	_, other := n.Sh("exit 3") // nobody else waits
	node.ExpectExit(t, n.Ended(other), 3, "Error")
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

// PROPERTIES 14: a child that outlives init in a shared PID namespace, and one that holds stdout
// open.
func TestWhatOutlivesInitIsEndedInASharedPIDNamespace(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "sh", "-c", "(while :; do sleep 0.05; done) & exit 9")
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	id := n.Run(pod, cfg, c)
	node.ExpectExit(t, n.Ended(id), 9, "Error")
}
