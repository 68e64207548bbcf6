// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A descriptor that the service manager has a copy of does not leave the epoll set when berth
// closes its own: the loop would be woken for it without end, and could not even take it out any
// more.
func TestADescriptorThatSomebodyElseKeepsDoesNotSpinTheLoop(t *testing.T) {
	s := &shelf{fds: map[string]int{}}
	w, err := New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	cmd, end := process(t, "exit 0")
	if _, err := w.Watch("c1", Process{Pid: uint32(cmd.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	copied, err := unix.Dup(s.fds["c1"])
	s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	w.Forget("c1")
	end()
	waitFor(t, cmd)
	if n := pending(t, w); n != 0 {
		t.Fatalf("%d events are pending for a process that nobody watches", n)
	}
}

func waitFor(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// pending is how many events the loop of w would be woken for now.
func pending(t *testing.T, w *Watcher) int {
	t.Helper()
	for {
		n, err := unix.EpollWait(w.ep, make([]unix.EpollEvent, 10), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}
