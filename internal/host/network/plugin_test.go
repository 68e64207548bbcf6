// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/ops"
	"berth/internal/host/cgroup"
)

// cgroups plugs package cgroup into a Network, as package daemon does.
type cgroups struct{ *cgroup.Groups }

func (g cgroups) New(id string) (Group, error) { return g.Groups.New(id) }

// groups makes cgroups of a name that nobody else has. The end of the test fails if one is left.
func groups(t testing.TB) cgroups {
	t.Helper()
	name := fmt.Sprintf("cni-test%d-%d", os.Getpid(), time.Now().UnixNano())
	g, err := cgroup.NewGroups(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			err := g.Sweep()
			left, _ := filepath.Glob("/sys/fs/cgroup/berth-" + name + "*")
			hybrid, _ := filepath.Glob("/sys/fs/cgroup/unified/berth-" + name + "*")
			if left = append(left, hybrid...); err == nil && len(left) == 0 {
				return
			}
			if time.Now().After(deadline) { // what was killed takes its time to end
				t.Errorf("left: %v, %v", left, err)
				return
			}
		}
	})
	return cgroups{g}
}

// scripted makes a Network whose only plug-in is a shell script. The script runs in an empty
// directory, which is returned, and need not answer what it is not asked for.
func scripted(t *testing.T, add string) (n *Network, dir string) {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	script := `#!/bin/sh
cd ` + dir + `
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
DEL) echo $CNI_CONTAINERID >> deleted ;;
ADD) ` + add + `
  echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.9.9/24"}]}' ;;
esac
`
	list := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"scripted"}]}`
	n = build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		if err := errors.Join(os.WriteFile(bin+"/scripted", []byte(script), 0o755), os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", []byte(list), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	return n, dir
}

// runs reports whether the process whose PID is in a file has not ended.
func runs(t *testing.T, file string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pidIn(t, file)) + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// until returns a context that is cancelled once a file is there.
func until(t *testing.T, file string) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if _, err := os.Stat(file); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return ctx
}

// setup connects a pod in a namespace of its own.
func setup(ctx context.Context, t *testing.T, n *Network, id string) (Pod, Result, error) {
	t.Helper()
	p := Pod{ID: id, Name: id, NetNS: pinned(t)}
	r, err := n.Setup(ctx, p)
	return p, r, err
}

// PROPERTIES 37: a plug-in started a daemon for all pods. The daemon was killed with the first pod
// that went, because it had inherited that pod's ID in its environment. It holds the output of the
// plug-in open, which held up the call.
func TestADaemonThatAPluginStartedLivesOn(t *testing.T) {
	n, dir := scripted(t, `[ -e pid ] || { setsid sleep 1000 & echo $! > pid; }; [ $CNI_CONTAINERID != cut ] || exec sleep 1000`)
	for _, id := range []string{"first", "second"} {
		p, r, err := setup(t.Context(), t, n, id)
		if err == nil {
			err = n.Teardown(t.Context(), p, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := setup(ctx, t, n, "cut"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that was cut off: %v", err)
	}
	n.sweep()
	if !runs(t, dir+"/pid") {
		t.Error("the daemon was ended")
	}
	if err := unix.Kill(pidIn(t, dir+"/pid"), unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 37: what a plug-in has started goes on with what is being undone, if it is not ended.
func TestWhatACallThatIsCutOffHasStartedIsEnded(t *testing.T) {
	n, dir := scripted(t, `(trap '' TERM; sleep 1000 & echo $! > child; mv child pid; wait) & wait`)
	if _, _, err := setup(until(t, dir+"/pid"), t, n, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// What was done is undone after that, so nothing may be at work.
	if runs(t, dir+"/pid") {
		t.Error("a process is left at work")
	}
	if b, err := os.ReadFile(dir + "/deleted"); err != nil || string(b) != "a\n" {
		t.Errorf("it was not undone: %q, %v", b, err)
	}
}

// A pod that cannot be made, because something beside its network fails, lost an address for ever
// about once in four hundred times: its call was cut off, and host-local was killed after it had
// made the file of the address, and before it had written into it whose the address is.
func TestACallThatIsOverIsLeftToFinishItsStep(t *testing.T) {
	n, dir := scripted(t, `: > lease; sleep 0.1; echo $CNI_CONTAINERID > lease`)
	if _, _, err := setup(until(t, dir+"/lease"), t, n, "a"); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(dir + "/lease"); err != nil || string(b) != "a\n" {
		t.Errorf("half a step is left: %q, %v", b, err)
	}
}

// A signal ended the plug-in, and its children went on.
func TestWhatAPluginThatWasKilledHasStartedIsEnded(t *testing.T) {
	n, dir := scripted(t, `sleep 1000 >/dev/null 2>&1 & echo $! > pid; kill -9 $$`)
	if _, _, err := setup(t.Context(), t, n, "a"); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	if runs(t, dir+"/pid") {
		t.Error("a process is left at work")
	}
}

// PROPERTIES 37: a plug-in that outlived the berth that ran it must not go on adding what is being
// removed. Nothing but its cgroup says so: the environment of a process is its own to choose, and
// reading it may block for ever.
func TestAPluginThatIsLeftAtWorkIsEnded(t *testing.T) {
	n := build(t, nil)
	works := func(id, in string) chan error {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id}
		if in != "" {
			g, err := n.cfg.Groups.New(in)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Abandon(); err != nil {
					t.Error(err)
				}
			})
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-ended
		})
		return ended
	}
	left := works("left", "left")
	others := map[string]chan error{"another pod's": works("left-not", "left-not"), "one in no group": works("left", "")}
	if err := n.Teardown(t.Context(), Pod{ID: "left", Name: "left", NetNS: pinned(t)}, Result{}); err != nil {
		t.Fatal(err)
	}
	left <- <-left
	for what, ended := range others {
		select {
		case err := <-ended:
			t.Errorf("%s was ended: %v", what, err)
			ended <- err
		default:
		}
	}
}

// A host that cannot start programs in cgroups runs plug-ins as every other runtime does.
func TestPluginsRunWithoutGroups(t *testing.T) {
	n, dir := scripted(t, `[ $CNI_CONTAINERID != cut ] || { sleep 1000 & echo $! > child; mv child pid; wait; }`)
	without := build(t, func(c *Config) { *c, c.Groups = n.cfg, nil })
	p, r, err := setup(t.Context(), t, without, "a")
	if err == nil {
		err = without.Teardown(t.Context(), p, r)
	}
	if err != nil {
		t.Error(err)
	}
	if _, _, err := setup(until(t, dir+"/pid"), t, without, "cut"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "deleted")); err != nil || string(b) != "a\ncut\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := unix.Kill(pidIn(t, dir+"/pid"), unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// noGroups cannot answer.
type noGroups struct{}

func (noGroups) New(string) (Group, error)         { return nil, unix.ENOMEM }
func (noGroups) End(context.Context, string) error { return unix.EMFILE }
func (noGroups) Sweep() error                      { return unix.EMFILE }

// PROPERTIES 37: a call whose group cannot be made is not started, because nobody could end what it
// leaves; and a pod is not disconnected while nobody knows what is at work on it.
func TestWhatCannotBeLookedForIsNotTakenForGone(t *testing.T) {
	n, dir := scripted(t, `echo > added`)
	exec := &plugins{groups: noGroups{}, log: n.cfg.Logger, list: n.exec.list}
	if _, err := exec.ExecPlugin(t.Context(), "/bin/true", nil, []string{"CNI_CONTAINERID=a"}); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%v", err)
	}
	n.cfg.Groups = noGroups{}
	if err := n.Teardown(t.Context(), Pod{ID: "a"}, Result{}); !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir + "/deleted"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was disconnected: %v", err)
	}
}

func TestTheErrorOfAPluginIsReported(t *testing.T) {
	for script, want := range map[string]string{
		`echo '{"code":7,"msg":"no address","details":"is free"}'; exit 1`: "no address; is free",
		`echo what >&2; exit 3`:             `exit status 3: "what"`,
		`exit 4`:                            `exit status 4`,
		`head -c 5000000 /dev/zero; exit 0`: "more than 4194304 bytes",
	} {
		n, _ := scripted(t, script)
		if _, _, err := setup(t.Context(), t, n, "a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// PROPERTIES 65: a plug-in that hangs is named with its command while it runs.
func TestAPluginThatHangsIsNamed(t *testing.T) {
	n, dir := scripted(t, "echo > began; while ! test -e go; do sleep 0.01; done")
	list := &ops.List{}
	n.exec.list = list
	ctx, op := list.Begin(t.Context(), ops.Work{Kind: ops.Run})
	defer op.End()
	done := make(chan error, 1)
	go func() {
		_, _, err := setup(ctx, t, n, "a")
		done <- err
	}()
	<-until(t, dir+"/began").Done()
	all, _ := list.Snapshot()
	if len(all) != 2 || all[1].Kind != ops.Plugin || all[1].What != "the CNI plug-in scripted (ADD)" || all[1].PartOf != all[0].Number {
		t.Errorf("listed is %+v", all)
	}
	if err := errors.Join(os.WriteFile(dir+"/go", nil, 0o600), <-done); err != nil {
		t.Fatal(err)
	}
	if all, _ := list.Snapshot(); len(all) != 1 {
		t.Errorf("listed after its end is %+v", all)
	}
}
