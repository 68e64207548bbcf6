// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/base/connection"
	"berth/internal/engine/embed"
	"berth/test/embedtest"
)

// PROPERTIES 17: containerd waited five seconds for each task of a shim that hangs, and then killed
// it, since it took the shim for dead.
func TestATaskWhoseShimHangsIsSetAsideUntilItAnswers(t *testing.T) {
	for _, sandboxed := range []bool{false, true} {
		t.Run(fmt.Sprint("sandbox object ", sandboxed), func(t *testing.T) {
			cfg := embedtest.Config(t)
			ctx := k8s(t)
			first, err := embed.Start(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer first.Stop()
			if sandboxed {
				if _, err := first.Client().SandboxStore().Create(ctx, sandbox.Sandbox{ID: "c1", Runtime: sandbox.RuntimeOpts{Name: "io.containerd.runc.v2"}, Sandboxer: "berth"}); err != nil {
					t.Fatal(err)
				}
			}
			task := run(t, ctx, first, cfg, "c1", "sleep 1000")
			if err := task.Start(ctx); err != nil {
				t.Fatal(err)
			}
			pid := int(task.Pid())
			shim := parent(t, pid)
			if err := first.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Kill(shim, unix.SIGCONT) }()
			for range 2 { // the second finds it set aside already
				s, err := embed.Start(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if !s.SetAside(ctx, "c1") || parent(t, pid) != shim {
					t.Errorf("set aside: %v; the parent of its process is %d, was %d", s.SetAside(ctx, "c1"), parent(t, pid), shim)
				}
				if err := s.Stop(); err != nil {
					t.Fatal(err)
				}
			}
			last := embedtest.Start(t, cfg)
			last.Adopt()
			if err := unix.Kill(shim, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			until(t, "the task is loaded", func() bool { return !last.SetAside(ctx, "c1") })
			c, err := last.Client().LoadContainer(ctx, "c1")
			if err != nil {
				t.Fatal(err)
			}
			found, err := c.Task(ctx, cio.Load)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := found.Status(ctx); err != nil || st.Status != containerd.Running || int(found.Pid()) != pid {
				t.Errorf("process %d, was %d: %v %v", found.Pid(), pid, st, err)
			}
			remove(t, ctx, last, "c1")
			if err := last.Client().SandboxStore().Delete(ctx, "c1"); err != nil && !errdefs.IsNotFound(err) {
				t.Error(err)
			}
			until(t, "no bundle is left", func() bool { // containerd may still clean up after the shim
				left, err := os.ReadDir(cfg.State + "/io.containerd.runtime.v2.task/k8s.io")
				return err == nil && len(left) == 0
			})
		})
	}
}

// parent is the parent of a process; 0 when the process has ended.
func parent(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if f[0] == "Z" {
		return 0
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// PROPERTIES 17: containerd waited five seconds for each sandbox whose shim hangs, too.
func TestASandboxWhoseShimHangsIsSetAsideUntilItAnswers(t *testing.T) {
	cfg := embedtest.Config(t)
	ctx := k8s(t)
	first, err := embed.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	shim := makeSandbox(t, ctx, first, "p1")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(shim, unix.SIGCONT) }()
	last := embedtest.Start(t, cfg)
	last.Adopt()
	if !last.SetAside(ctx, "p1") {
		t.Error("it is not set aside")
	}
	if err := unix.Kill(shim, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the sandbox is loaded", func() bool { return !last.SetAside(ctx, "p1") })
	removeSandbox(t, ctx, last, "p1", shim)
}

// makeSandbox makes a sandbox that is a shim, and returns the shim's pid.
func makeSandbox(t *testing.T, ctx context.Context, s *embed.Server, id string) int {
	t.Helper()
	sb := sandbox.Sandbox{
		ID:        id,
		Runtime:   sandbox.RuntimeOpts{Name: "io.containerd.runc.v2"},
		Sandboxer: "shim",
		Labels:    map[string]string{connection.LabelOwner: "test"},
		Spec:      &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte("{}")},
	}
	if _, err := s.Client().SandboxStore().Create(ctx, sb); err != nil {
		t.Fatal(err)
	}
	controller := s.Client().SandboxController("shim")
	if err := controller.Create(ctx, sb); err != nil {
		t.Fatal(err)
	}
	made, err := controller.Start(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return int(made.Pid)
}

// removeSandbox ends a sandbox that is the shim with that pid.
func removeSandbox(t *testing.T, ctx context.Context, s *embed.Server, id string, shim int) {
	t.Helper()
	controller := s.Client().SandboxController("shim")
	if st, err := controller.Status(ctx, id, false); err != nil || int(st.Pid) != shim {
		t.Errorf("process %d, was %d: %v", st.Pid, shim, err)
	}
	// The shim may end before its answer has left; containerd then needs a moment to forget it.
	until(t, "the sandbox is shut down", func() bool {
		err := controller.Shutdown(ctx, id)
		return err == nil || errdefs.IsNotFound(err)
	})
	until(t, "the shim has ended", func() bool { return parent(t, shim) == 0 })
	if err := s.Client().SandboxStore().Delete(ctx, id); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 17: containerd had the OCI runtime list the processes of each task at its start, two
// at a time: a node with 500 pods was without an answer for six seconds. The runtime is not asked
// any more, and what a task needs is there after each start.
func TestTheTasksOfAPodAreFoundAgain(t *testing.T) {
	cfg := embedtest.Config(t)
	ctx := k8s(t)
	s, err := embed.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop() }()
	shim := makeSandbox(t, ctx, s, "p1")
	task := run(t, ctx, s, cfg, "c1", "sleep 1000", containerd.WithSandbox("p1"))
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pid := task.Pid()
	restart := func() {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if s, err = embed.Start(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		s.Adopt()
		until(t, "what runs is loaded", func() bool { return !s.SetAside(ctx, "c1") && !s.SetAside(ctx, "p1") })
	}
	for range 3 {
		restart()
		c, err := s.Client().LoadContainer(ctx, "c1")
		if err != nil {
			t.Fatal(err)
		}
		found, err := c.Task(ctx, cio.Load)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := found.Status(ctx); err != nil || st.Status != containerd.Running || found.Pid() != pid {
			t.Errorf("process %d, was %d: %v %v", found.Pid(), pid, st, err)
		}
		if _, err := os.Stat(cfg.State + "/io.containerd.runtime.v2.task/k8s.io/c1/work/"); err != nil {
			t.Errorf("the working directory of its shim: %v", err)
		}
	}

	// One that lost its container in the midst of a creation is listed, for berth to find it.
	o, err := s.Client().ContainerService().Get(ctx, "c1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client().ContainerService().Delete(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	restart()
	ts, err := s.Client().TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil || len(ts.GetTasks()) != 1 || ts.GetTasks()[0].GetID() != "c1" {
		t.Errorf("tasks: %v, %v", ts, err)
	}
	if _, err := s.Client().ContainerService().Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	remove(t, ctx, s, "c1")
	removeSandbox(t, ctx, s, "p1", shim)
}
