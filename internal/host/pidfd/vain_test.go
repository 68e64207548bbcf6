// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// bootNow is the ID of this boot.
func bootNow(t *testing.T) string {
	t.Helper()
	id, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// pidNow is the pid of a pidfd's process; 0 if it was reaped.
func pidNow(fd int) uint32 {
	pid, _ := pidOf(fd)
	return pid
}

// aThread is the number of a thread of this process that is not the process's own number. It is
// there until the test ends.
func aThread(t *testing.T) uint32 {
	t.Helper()
	numbers, over := make(chan int), make(chan struct{})
	var threads sync.WaitGroup
	t.Cleanup(func() { close(over); threads.Wait() })
	for {
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			numbers <- unix.Gettid()
			<-over
		})
		if tid := <-numbers; tid != os.Getpid() {
			return uint32(tid) // a number of a thread
		}
	}
}

// PROPERTIES 33: the number of a process that has ended was given to a thread. pidfd_open answers
// ENOENT then, and EINVAL before Linux 6.15: the container was RUNNING for ever.
func TestANumberThatBelongsToAThreadNowIsGone(t *testing.T) {
	h := collectWith(t, nil, map[string]int{"kept": ownPidfd(t)})
	tid := aThread(t)
	st, err := ReadStat(tid)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Process{
		"known from a record":             {Pid: tid, StartTicks: 1, BootID: bootNow(t)},
		"made just now":                   {Pid: tid},
		"kept":                            {Pid: tid, StartTicks: 1, BootID: bootNow(t)},
		"with the start time of a thread": {Pid: tid, StartTicks: st.StartTicks, BootID: bootNow(t)},
	} {
		if _, err := h.Watch(name, p); !errors.Is(err, ErrGone) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// starve takes all descriptors that this process may have but for some. The function that is
// returned gives them back.
func starve(t *testing.T, but int) (feed func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = min(before.Cur, uint64(openFDs(t)+64))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	var taken []int
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, fd)
	}
	for range but {
		_ = unix.Close(taken[len(taken)-1])
		taken = taken[:len(taken)-1]
	}
	fed := false
	feed = func() {
		if fed {
			return
		}
		fed = true
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(feed)
	return feed
}

// PROPERTIES 33: whoever has no descriptor left cannot ask. Containers were reported as EXITED with
// 255 and killed.
func TestAProcessThatCannotBeAskedForIsNotGone(t *testing.T) {
	h := collect(t)
	cmd, end := process(t, "exit 42")
	defer func() { end(); _ = cmd.Wait() }()
	pid := uint32(cmd.Process.Pid)
	st, err := ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	p := Process{Pid: pid, StartTicks: st.StartTicks, BootID: bootNow(t)}
	for _, but := range []int{0, 1} { // 1: enough for pidfd_open alone
		feed := starve(t, but)
		for name, p := range map[string]Process{"recorded": p, "made just now": {Pid: pid}} {
			if got, err := h.Watch("c1", p); err == nil && got.StartTicks == 0 || errors.Is(err, ErrGone) {
				t.Errorf("with %d descriptors, %s: got %+v, %v", but, name, got, err)
			}
			h.Forget("c1")
		}
		feed()
	}
	if got, err := h.Watch("c1", p); err != nil || got != p {
		t.Errorf("once there are descriptors again: got %+v, %v", got, err)
	}
}

// PROPERTIES 33: a boot ID that could not be read was kept, and made every process one of an
// earlier boot.
func TestABootIDThatCouldNotBeReadIsReadAgain(t *testing.T) {
	h := collect(t)
	cmd, end := process(t, "exit 0")
	defer func() { end(); _ = cmd.Wait() }()
	p := Process{Pid: uint32(cmd.Process.Pid), BootID: "another"}
	feed := starve(t, 0)
	bootID.Lock()
	bootID.known = ""
	bootID.Unlock()
	if _, err := h.Watch("c1", p); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("without descriptors: got %v", err)
	}
	if id, err := BootID(); err == nil {
		t.Errorf("without descriptors the boot ID is %q", id)
	}
	feed()
	if _, err := h.Watch("c1", p); !errors.Is(err, ErrGone) {
		t.Errorf("a process of an earlier boot: got %v", err)
	}
	p.BootID = bootNow(t)
	if _, err := h.Watch("c1", p); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 33: the pidfd that was kept of a process has its exit code, and was closed and dropped
// when another question failed.
func TestAKeptPidfdOutlivesAQuestionThatFails(t *testing.T) {
	for _, but := range []int{0, 1} { // 1: enough to ask whose it is
		t.Run(fmt.Sprint(but), func(t *testing.T) {
			cmd, end := process(t, "exit 42")
			st, err := ReadStat(uint32(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			fd, err := Open(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			p := Process{Pid: uint32(cmd.Process.Pid), StartTicks: st.StartTicks, BootID: bootNow(t)}
			kept := &shelf{fds: map[string]int{}}
			kept.Keep("c1", fd)
			h := collectWith(t, kept, map[string]int{"c1": fd})
			ask := func() {
				feed := starve(t, but)
				defer feed()
				if _, err := h.Watch("c1", p); errors.Is(err, ErrGone) {
					t.Error(err)
				}
				h.ForgetUnclaimed()
			}
			if but == 0 {
				ask()
			}
			end()
			_ = cmd.Wait()
			ask()
			if _, err := h.Watch("c1", p); err != nil {
				t.Fatal(err)
			}
			if f := h.last("c1"); f.Measured != h.Exact() || f.Measured && f.Code != 42 {
				t.Errorf("got %v", f)
			}
			if _, ok := kept.fds["c1"]; !ok {
				t.Error("it is not kept any more")
			}
			h.Forget("c1")
		})
	}
}
