// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/test/node"
)

// execSync runs a shell script in a container.
func execSync(t *testing.T, n *node.Node, id, script string, timeout time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	return n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd:         []string{"sh", "-c", script},
		Timeout:     int64(timeout / time.Second),
	})
}

// runs reports whether a process with these arguments runs on the node.
func runs(args ...string) bool {
	want := strings.Join(args, "\x00") + "\x00"
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		if b, err := os.ReadFile(d); err == nil && string(b) == want {
			return true
		}
	}
	return false
}

// nothingLeft waits until berth has given back every exec process.
func nothingLeft(n *node.Node) {
	n.Until("no exec process is left", func() bool {
		left, err := os.ReadDir(n.Dir + "/run/exec")
		return err == nil && len(left) == 0
	})
}

// tests counts the tests that have asked for a unique duration.
var tests sync.Map

// unique is a duration for sleep(1) by which a process of this test is found.
func unique(t *testing.T, i int) string {
	t.Helper()
	number, _ := tests.LoadOrStore(t.Name(), counted.Add(1))
	return fmt.Sprintf("%d.%d%02d", 100000+os.Getpid(), number, i)
}

var counted atomic.Int32

// execs runs a test with the processes of ExecSync made by the OCI runtime and by berth-exec, or with
// one of them: see [node.Pick].
func execs(t *testing.T, external bool, f func(t *testing.T, n *node.Node)) {
	for _, way := range node.Pick(t, "maker of ExecSync's processes", config.ExecOCI, config.ExecHelper) {
		t.Run(way, func(t *testing.T) { f(t, node.Start(t, made(way, external))) })
	}
}

// made are the options of a node on which the processes of ExecSync are made in one way.
func made(way string, external bool) node.Options {
	return node.Options{External: external, Args: []string{"--set", "runtimes.runc.exec=" + way}}
}

// somebody is a container that runs as a user without capabilities, with a variable and a directory.
func somebody() *runtimeapi.ContainerConfig {
	c := node.ContainerConfig("c", "sleep", "1000")
	c.Envs = []*runtimeapi.KeyValue{{Key: "COLOUR", Value: []byte("green")}}
	c.WorkingDir = "/tmp"
	c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		RunAsUser:          &runtimeapi.Int64Value{Value: 1234},
		RunAsGroup:         &runtimeapi.Int64Value{Value: 99},
		SupplementalGroups: []int64{5678},
		NoNewPrivs:         true,
		Capabilities:       &runtimeapi.Capability{DropCapabilities: []string{"ALL"}},
	}}
	return c
}

// answers are what scripts get in the container of somebody, whoever makes their processes.
func answers() map[string]*runtimeapi.ExecSyncResponse {
	return map[string]*runtimeapi.ExecSyncResponse{
		"echo out; echo err >&2":          {Stdout: []byte("out\n"), Stderr: []byte("err\n")},
		"exit 42":                         {ExitCode: 42},
		"kill -9 $$":                      {ExitCode: 137},
		"id -u; id -g; echo $COLOUR; pwd": {Stdout: []byte("1234\n99\ngreen\n/tmp\n")},
		"grep -E 'Groups|CapBnd' /proc/self/status": {Stdout: []byte("Groups:\t99 5678 \nCapBnd:\t0000000000000000\n")},
		"cat": {},
	}
}

// expectAnswers runs each script by ExecSync.
func expectAnswers(t *testing.T, n *node.Node, id string, scripts map[string]*runtimeapi.ExecSyncResponse) {
	t.Helper()
	for script, want := range scripts {
		got, err := execSync(t, n, id, script, 10*time.Second)
		if err != nil {
			t.Errorf("%s: %v", script, err)
			continue
		}
		if string(got.GetStdout()) != string(want.GetStdout()) || string(got.GetStderr()) != string(want.GetStderr()) || got.GetExitCode() != want.GetExitCode() {
			t.Errorf("%s: got %v, want %v", script, got, want)
		}
	}
}

// PROPERTIES 5: exit codes are exact, also those of exec processes.
func TestExecSyncReturnsOutputAndCode(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		execs(t, external, func(t *testing.T, n *node.Node) {
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			id := n.Run(pod, cfg, somebody())
			scripts := answers()
			scripts["grep -E 'NoNewPrivs|Seccomp:' /proc/self/status >/tmp/a; grep -E 'NoNewPrivs|Seccomp:' /proc/1/status >/tmp/b; cmp /tmp/a /tmp/b"] = &runtimeapi.ExecSyncResponse{}
			expectAnswers(t, n, id, scripts)
			nothingLeft(n)
		})
	})
}

func TestExecSyncSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	execs(t, false, func(t *testing.T, n *node.Node) {
		pod, id := n.Sh("sleep 1000")
		_, ended := n.Sh("exit 0")
		n.Ended(ended)
		for _, c := range []struct {
			id   string
			cmd  []string
			code codes.Code
			says string
		}{
			{"none", []string{"true"}, codes.NotFound, "none"},
			{pod, []string{"true"}, codes.NotFound, "is a sandbox"},
			{ended, []string{"true"}, codes.FailedPrecondition, "is not running"},
			{id, nil, codes.InvalidArgument, "cmd is empty"},
			{id, []string{"/bin/nothing"}, codes.Unknown, "/bin/nothing"},
		} {
			_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.id, Cmd: c.cmd})
			if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.says) {
				t.Errorf("%q in %s: got %v, want %s and %q", c.cmd, c.id, err, c.code, c.says)
			}
		}
		nothingLeft(n)
	})
}

// PROPERTIES 14: the timeout of an ExecSync is kept although a grandchild holds the output open.
func TestExecSyncTimesOutAlthoughAGrandchildHoldsTheOutput(t *testing.T) {
	t.Parallel()
	execs(t, false, func(t *testing.T, n *node.Node) {
		_, id := n.Sh("sleep 1000")
		_, err := execSync(t, n, id, "sleep "+unique(t, 1)+" & exec sleep "+unique(t, 2), time.Second)
		if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(status.Convert(err).Message(), "timed out after 1s") {
			t.Errorf("got %v", err)
		}
		n.Until("the command is killed", func() bool { return !runs("sleep", unique(t, 2)) })
		got, err := execSync(t, n, id, "sleep "+unique(t, 3)+" & echo started", 20*time.Second)
		if err != nil || string(got.GetStdout()) != "started\n" {
			t.Errorf("got %v %v", got, err)
		}
		nothingLeft(n)
	})
}

// PROPERTIES 12
func TestExecSyncKeepsABoundedPartOfTheOutput(t *testing.T) {
	t.Parallel()
	execs(t, false, func(t *testing.T, n *node.Node) {
		_, id := n.Sh("sleep 1000")
		got, err := execSync(t, n, id, "head -c 40000000 /dev/zero; echo end >&2; exit 3", 0)
		if err != nil {
			t.Fatal(err)
		}
		if size := len(got.GetStdout()) + len(got.GetStderr()); size > 16<<20-1024 || size < 15<<20 {
			t.Errorf("%d bytes were kept", size)
		}
		if got.GetExitCode() != 3 || !strings.Contains(string(got.GetStderr()), "bytes were dropped") {
			t.Errorf("got code %d and %q", got.GetExitCode(), got.GetStderr())
		}
		nothingLeft(n)
	})
}

// PROPERTIES 29: no process is left of an exec whose container ended or whose client is gone.
func TestExecSyncEndsWithItsContainerAndItsClient(t *testing.T) {
	t.Parallel()
	execs(t, false, func(t *testing.T, n *node.Node) {
		pod, id := n.Sh("sleep 1000")
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() {
			_, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", unique(t, 1)}})
			ended <- err
		}()
		n.Until("the command runs", func() bool { return runs("sleep", unique(t, 1)) })
		leave()
		<-ended
		n.Until("the command of a client that is gone is killed", func() bool { return !runs("sleep", unique(t, 1)) })
		go func() {
			_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", unique(t, 2)}})
			ended <- err
		}()
		n.Until("the command runs", func() bool { return runs("sleep", unique(t, 2)) })
		if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
		<-ended
		n.Until("the command of a container that has ended is gone", func() bool { return !runs("sleep", unique(t, 2)) })
		nothingLeft(n)
	})
}

// PROPERTIES 4 and 6: nobody is left who waits for a command when berth was killed, so the next
// berth ends it.
func TestExecSyncLeavesNothingWhenBerthIsKilled(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		execs(t, external, func(t *testing.T, n *node.Node) {
			_, id := n.Sh("sleep 1000")
			const count = 5
			for i := range count {
				go func() {
					_, _ = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", unique(t, i)}})
				}()
			}
			for i := range count {
				n.Until("the command runs", func() bool { return runs("sleep", unique(t, i)) })
			}
			n.Berth.Kill(syscall.SIGKILL)
			n.StartBerth()
			for i := range count {
				n.Until("the command is ended", func() bool { return !runs("sleep", unique(t, i)) })
			}
			nothingLeft(n)
			if got, err := execSync(t, n, id, "echo there", 0); err != nil || string(got.GetStdout()) != "there\n" {
				t.Errorf("got %v %v", got, err)
			}
		})
	})
}

// A probe, or a person, that comes while containerd starts was refused at once.
func TestAnExecWaitsALittleForContainerd(t *testing.T) {
	t.Parallel()
	n := node.Start(t, made(config.ExecOCI, true))
	_, id := n.Sh("sleep 1000")
	n.Containerd.Kill(syscall.SIGKILL)
	n.Until("berth knows that containerd is away", func() bool { return !n.Connected() })
	n.StartContainerd()
	began := time.Now()
	got, err := execSync(t, n, id, "exit 42", 10*time.Second)
	took := time.Since(began)
	switch {
	case status.Code(err) == codes.Unavailable && took >= 2*time.Second: // a slow machine: it has waited
	case err != nil || got.GetExitCode() != 42:
		t.Errorf("after %s: %v, %v", took, got, err)
	}
}

func TestManyExecSyncsAtOnce(t *testing.T) {
	t.Parallel()
	execs(t, false, func(t *testing.T, n *node.Node) {
		_, id := n.Sh("sleep 1000")
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				got, err := execSync(t, n, id, fmt.Sprintf("echo %d; exit %d", i, i), 0)
				if err != nil || string(got.GetStdout()) != fmt.Sprintln(i) || got.GetExitCode() != int32(i) {
					t.Errorf("%d: got %v %v", i, got, err)
				}
			})
		}
		wg.Wait()
		nothingLeft(n)
		if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %s", st.GetState())
		}
	})
}
