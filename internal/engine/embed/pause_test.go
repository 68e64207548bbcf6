// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/embedtest"
)

// startPause starts the pause program as PID 1 of a PID namespace, as a pod does.
func startPause(t *testing.T) *exec.Cmd {
	t.Helper()
	path := filepath.Join(embedtest.Libexec(t), "pause")
	cmd := exec.Command(path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start pause: %v: run make tools", err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	until(t, "pause waits for signals", func() bool { return blocked(t, cmd.Process.Pid) })
	return cmd
}

func TestPauseEndsWithZeroWhenAsked(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := startPause(t)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("pause ended with %v", err)
			}
		})
	}
}

func TestPauseReapsOrphansAndThenSleeps(t *testing.T) {
	cmd := startPause(t)
	pid := cmd.Process.Pid

	// Twenty processes whose parent ends at once: init inherits them. They live
	// until the pipe is closed.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sh := exec.Command("nsenter", "--target", fmt.Sprint(pid), "--pid", "sh", "-c",
		"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat <&3 >/dev/null 2>&1 & done")
	sh.ExtraFiles = []*os.File{r}
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("make orphans: %v\n%s", err, out)
	}
	r.Close()
	until(t, "pause inherits twenty children", func() bool { return children(t, pid) == 20 })
	w.Close()
	until(t, "all are reaped", func() bool { return children(t, pid) == 0 })
	until(t, "pause waits for signals again", func() bool { return blocked(t, pid) })
}

func TestPauseTellsItsVersion(t *testing.T) {
	out, err := exec.Command(filepath.Join(embedtest.Libexec(t), "pause"), "-v").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(out, []byte("pause ")) {
		t.Errorf("pause -v printed %q", out)
	}
}

// until waits for a condition that nothing announces.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never true: %s", what)
		}
	}
}

// blocked reports whether a process sleeps in rt_sigtimedwait.
func blocked(t *testing.T, pid int) bool {
	t.Helper()
	call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil {
		t.Fatal(err)
	}
	number, _, _ := strings.Cut(string(call), " ")
	return number == fmt.Sprint(syscall.SYS_RT_SIGTIMEDWAIT)
}

// children counts the children of a process, those that are not reaped included.
func children(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(strings.Fields(string(list)))
}
