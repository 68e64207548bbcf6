// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// PROPERTIES 51: the process that traces another one, and holds it at its exit, is named, also if it
// has given itself a name of several lines.
func TestWhatHoldsAProcessIsNamed(t *testing.T) {
	cmd, end := process(t, "exit 0")
	defer end()
	runtime.LockOSThread() // this thread is the tracer
	defer runtime.UnlockOSThread()
	pid := cmd.Process.Pid
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
	h, err := HeldBy(uint32(pid))
	if err != nil || h.Tracer == 0 || !strings.HasPrefix(h.State, "t") || h.Init {
		t.Errorf("%+v, %v", h, err)
	}
	if s := h.String(); !strings.Contains(s, fmt.Sprintf("process %d (", pid)) || !strings.Contains(s, "is traced by process") {
		t.Error(s)
	}
	if err := unix.PtraceCont(pid, 0); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if h, err := HeldBy(uint32(pid)); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %+v, %v", h, err)
	}
}

// A name is in one line, whatever a process calls itself.
func TestAForgedNameIsQuoted(t *testing.T) {
	h := Hold{Thread: 1, Command: "a\nb", State: "R (running)", Tracer: 2, TracedBy: "c\nd", Waits: "do_exit"}
	if s := h.String(); s != `process 1 ("a\nb") is in state R (running), is traced by process 2 ("c\nd"), and waits in do_exit` {
		t.Error(s)
	}
}

// All processes of a PID namespace are killed, also those in a namespace below, and nothing outside:
// neither where there is no namespace of its own, nor after its first process is gone.
func TestThePIDNamespaceOfAProcessIsKilled(t *testing.T) {
	outside := exec.Command("sleep", "1000")
	inside := exec.Command("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "sleep 1000 & unshare --pid --fork sleep 1000 & wait; exit 0")
	for _, cmd := range []*exec.Cmd{outside, inside} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()
	var all []uint32
	for len(all) != 4 { // until all are there
		all = nil
		for at := children(uint32(inside.Process.Pid)); len(at) > 0; at = append(at[1:], children(at[0])...) {
			all = append(all, at[0])
		}
	}
	pid := all[0] // of the first process of the namespace
	space, err := namespaceOf(int(pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if in, err := isWithin(int(p), space); err != nil || !in {
			t.Errorf("process %d of %v: %v, %v", p, all, in, err)
		}
	}
	if in, err := isWithin(outside.Process.Pid, space); err != nil || in {
		t.Errorf("a process outside: %v, %v", in, err)
	}
	if pids, err := KillNamespace(Process{Pid: uint32(outside.Process.Pid)}); err != nil || len(pids) != 0 {
		t.Errorf("of a process without a namespace: %v, %v", pids, err)
	}
	pids, err := KillNamespace(Process{Pid: pid})
	if err != nil || !slices.Contains(pids, int(pid)) { // the kernel may be faster with the others
		t.Errorf("killed: %v, %v", pids, err)
	}
	_ = inside.Wait()
	if pids, err := KillNamespace(Process{Pid: pid, StartTicks: 1}); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v, %v", pids, err)
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process outside: %v", err)
	}
}

// children returns the pids of the children of a process.
func children(pid uint32) (pids []uint32) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for f := range strings.FieldsSeq(string(b)) {
		pids = append(pids, number(f))
	}
	return pids
}
