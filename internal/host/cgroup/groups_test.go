// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// groupsOf makes groups of a name that nobody else has. The end of the test fails if one is left.
func groupsOf(t testing.TB) (g *Groups, name string) {
	t.Helper()
	name = fmt.Sprintf("test%d-%d", os.Getpid(), time.Now().UnixNano())
	g, err := NewGroups(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := g.list(func(string) bool { return true })
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		for _, path := range left {
			_, _ = removeTree(context.Background(), path)
		}
	})
	return g, name
}

// started runs a shell script in a group, and returns once the script has printed a line.
func started(t testing.TB, c *Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.FD()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// killed waits for the end of a command that was killed.
func killed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if _ = cmd.Wait(); !strings.Contains(cmd.ProcessState.String(), "killed") {
		t.Errorf("it was not killed: %v", cmd.ProcessState)
	}
}

// PROPERTIES 37: the next berth ends what the runs that were cut off have left, and nothing else.
func TestTheNextBerthKnowsWhatWasCutOff(t *testing.T) {
	g, name := groupsOf(t)
	groups := map[string]*Group{}
	for _, id := range []string{"pod", "pod.1", "other", "served"} {
		c, err := g.New(id)
		if err != nil {
			t.Fatal(err)
		}
		groups[id] = c
	}
	// What a run has started is found also when it starts more meanwhile.
	cut := started(t, groups["pod"], "i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i+1)); [ $i = 20 ] && echo; done; wait")
	similar := started(t, groups["pod.1"], "echo; exec sleep 1000")
	other := started(t, groups["other"], "echo; exec sleep 1000")
	served := started(t, groups["served"], "echo; exec sleep 1000")
	if err := groups["served"].Finish(); err != nil {
		t.Fatal(err)
	}
	next, err := NewGroups(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(next.End(t.Context(), "pod"), next.End(t.Context(), "served"), next.End(t.Context(), "none")); err != nil {
		t.Fatal(err)
	}
	killed(t, cut)
	for _, cmd := range []*exec.Cmd{similar, other, served} {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%v was ended: %v", cmd.Args, err)
		}
	}
	if err := next.Sweep(); err != nil { // as the next berth does when it starts
		t.Fatal(err)
	}
	killed(t, similar)
	killed(t, other)
	if err := served.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("what a finished run has left was ended: %v", err)
	}
	_ = served.Process.Kill()
	_ = served.Wait()
	if err := next.Sweep(); err != nil {
		t.Fatal(err)
	}
	for _, c := range groups {
		_ = c.dir.Close()
	}
}

// PROPERTIES 37: a program that berth's end cut off is left to finish its step. host-local was killed
// after it had made the file of an address, and before it had written into it whose it is.
func TestWhatABerthThatWasKilledHasLeftMayFinishItsStep(t *testing.T) {
	g, name := groupsOf(t)
	step := t.TempDir() + "/step"
	var groups []*Group
	for _, id := range []string{"steps", "hangs"} {
		c, err := g.New(id)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, c)
	}
	steps := started(t, groups[0], "echo; sleep 0.2; echo done > "+step)
	hangs := started(t, groups[1], "echo; exec sleep 1000")
	next, err := NewGroups(name, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(next.Sweep(), next.End(t.Context(), "steps"), steps.Wait()); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(step); string(b) != "done\n" {
		t.Errorf("half a step is left: %q, %v", b, err)
	}
	if err := hangs.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it was ended within the grace: %v", err)
	}
	next.left = time.Now().Add(10 * time.Millisecond)
	if err := next.End(t.Context(), "hangs"); err != nil {
		t.Error(err)
	}
	killed(t, hangs)
	for _, c := range groups {
		_ = c.dir.Close()
	}
}

// PROPERTIES 37
func TestARunThatFinishedLeavesItsProcessesAndOneThatWasCutOffDoesNot(t *testing.T) {
	g, _ := groupsOf(t)
	for _, cutOff := range []bool{false, true} {
		c, err := g.New("pod")
		if err != nil {
			t.Fatal(err)
		}
		cmd := started(t, c, "echo; exec sleep 1000")
		if err := g.Sweep(); err != nil { // it knows that the run goes on
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Error(err)
		}
		if cutOff {
			err = c.Abandon()
		} else {
			err = errors.Join(c.Finish(), g.Sweep(), g.End(t.Context(), "pod"), cmd.Process.Kill())
		}
		if err != nil {
			t.Error(err)
		}
		killed(t, cmd)
		if err := g.Sweep(); err != nil {
			t.Error(err)
		}
	}
	for _, end := range []func(*Group) error{(*Group).Finish, (*Group).Abandon} { // nothing is left
		c, err := g.New("pod")
		if err == nil {
			err = end(c)
		}
		if err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(c.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}

// A run that does not end is named at the deadline, and is not taken for ended.
func TestWhatCannotBeEndedInTimeIsAnError(t *testing.T) {
	g, _ := groupsOf(t)
	c, err := g.New("pod")
	if err != nil {
		t.Fatal(err)
	}
	cmd := started(t, c, "echo; exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.End(ctx, "pod"); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended before its deadline: %v", err)
	}
	killed(t, cmd)
	if err := errors.Join(g.End(t.Context(), "pod"), c.Abandon()); err != nil {
		t.Error(err)
	}
}

// A host that has mounted the hierarchies of cgroup v1 alone has the unified one, too.
func TestTheUnifiedHierarchyNeedNotBeMounted(t *testing.T) {
	f, err := mountUnified()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // after it was looked for what is left
	g, _ := groupsOf(t)
	g.bases = []string{fmt.Sprintf("/proc/self/fd/%d", f.Fd())}
	c, err := g.New("pod")
	if err != nil {
		t.Fatal(err)
	}
	cmd := started(t, c, "echo; exec sleep 1000")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if err != nil || !strings.Contains(string(b), "0::/"+filepath.Base(c.path)+"\n") {
		t.Errorf("it is in:\n%s%v", b, err)
	}
	if err := g.End(t.Context(), "pod"); err != nil {
		t.Error(err)
	}
	killed(t, cmd)
	if err := c.Abandon(); err != nil {
		t.Error(err)
	}
}

func TestAGroupThatSystemdDelegatedIsKnown(t *testing.T) {
	root, err := unified()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, fmt.Sprintf("berth-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Rmdir(dir) }()
	if delegated(dir) {
		t.Error("it was not delegated")
	}
	if err := unix.Setxattr(dir, "user.delegate", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if !delegated(dir) {
		t.Error("it was delegated")
	}
}

// BenchmarkARun starts a program with and without a group of its own. The difference is what a
// group costs.
func BenchmarkARun(b *testing.B) {
	g, _ := groupsOf(b)
	for _, in := range []string{"nothing", "a group"} {
		b.Run("in "+in, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				if in == "nothing" {
					if err := cmd.Run(); err != nil {
						b.Fatal(err)
					}
					continue
				}
				c, err := g.New("bench")
				if err != nil {
					b.Fatal(err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.FD()}
				if err := errors.Join(cmd.Run(), c.Finish()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
