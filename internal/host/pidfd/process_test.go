// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ofReaped is a pidfd whose process was reaped, and the pid that this process had.
func ofReaped(t *testing.T) (fd int, pid uint32) {
	t.Helper()
	cmd, end := process(t, "exit 42")
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	end()
	_ = cmd.Wait()
	return fd, uint32(cmd.Process.Pid)
}

// Between pidfd_open and the reading of /proc/PID/stat, the process can be reaped and its pid given
// to another: here, to this test. The start time that is read then is not the watched process's.
func TestAnIdentityIsNotReadFromAProcessThatGotThePidMeanwhile(t *testing.T) {
	fd, _ := ofReaped(t)
	defer unix.Close(fd)
	me := uint32(os.Getpid())
	p, err := identify(fd, Process{Pid: me})
	if err != nil || p.StartTicks != 0 || p.BootID != bootNow(t) {
		t.Errorf("got %+v, %v", p, err)
	}
	if _, err := identify(fd, Process{Pid: me, StartTicks: 1}); !errors.Is(err, ErrGone) {
		t.Errorf("another start time: got %v", err)
	}
}

func TestAZombieStillHasItsIdentity(t *testing.T) {
	cmd, end := process(t, "exit 0")
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	end()
	for Ask(fd) != Gone {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	}
	p, err := identify(fd, Process{Pid: uint32(cmd.Process.Pid)})
	if err != nil || p.StartTicks == 0 {
		t.Errorf("got %+v, %v", p, err)
	}
	_ = cmd.Wait()
	if err := Send(fd, 0); !errors.Is(err, ErrGone) {
		t.Error("not reported as reaped after its parent waited for it")
	}
}

// A start that kill -9 cut off is undone by the next berth and made again under the same ID. What
// the service manager kept of the first process must not be taken for the second.
func TestAPidfdLeftOfAnEarlierStartIsNotTakenForTheNewProcess(t *testing.T) {
	dead, _ := ofReaped(t)
	alive := ownPidfd(t)
	s := &shelf{fds: map[string]int{}}
	w := collectWith(t, s, map[string]int{"dead": dead, "alive": alive})
	cmd, end := process(t, "exit 0")
	defer func() { end(); _ = cmd.Wait() }()
	for _, id := range []string{"dead", "alive"} {
		p, err := w.Watch(id, Process{Pid: uint32(cmd.Process.Pid)})
		if err != nil || p.StartTicks == 0 {
			t.Fatalf("%s: %+v, %v", id, p, err)
		}
		if a, watched := w.Look(id); a != Alive || !watched {
			t.Errorf("%s: the new process is alive, got %v, watched %v", id, a, watched)
		}
		if fd, ok := s.fds[id]; !ok || pidNow(fd) != uint32(cmd.Process.Pid) {
			t.Errorf("%s: the new process is not kept in place of the earlier one", id)
		}
		w.Forget(id)
	}
	fd, pid := ofReaped(t)
	if got, _, kept, err := claim(fd, Process{Pid: pid, StartTicks: 1}); err != nil || !kept || got != fd {
		t.Errorf("a process that was reaped: %d, %v, %v", got, kept, err)
	}
	_ = unix.Close(fd)
	if _, _, _, err := claim(ownPidfd(t), Process{Pid: pid, StartTicks: 1}); !errors.Is(err, ErrGone) {
		t.Errorf("the pidfd of another process that lives was taken: %v", err)
	}
}

func TestAnotherProcessUnderTheSameIDTakesThePlaceOfTheFirst(t *testing.T) {
	w := collect(t)
	first, endFirst := process(t, "exit 1")
	second, endSecond := process(t, "exit 2")
	if _, err := w.Watch("c1", Process{Pid: uint32(first.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call does nothing
		if p, err := w.Watch("c1", Process{Pid: uint32(second.Process.Pid)}); err != nil || p.Pid != uint32(second.Process.Pid) {
			t.Fatalf("got %+v, %v", p, err)
		}
	}
	endFirst()
	_ = first.Wait()
	if a, watched := w.Look("c1"); a != Alive || !watched {
		t.Errorf("%v, watched %v", a, watched)
	}
	endSecond()
	_ = second.Wait()
	if f := w.last("c1"); f.Measured && f.Code != 2 {
		t.Errorf("got %v", f)
	}
}

// An exec changes what a process is said to execute.
func TestAnExecChangesTheProgram(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read line; exec sleep 1000")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := uint32(cmd.Process.Pid)
	read := func() Stat {
		st, err := ReadStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	program := func() Program { return read().Program }
	for st := read(); st.Program.Command != "sh" || st.State != 'S'; st = read() { // it waits for its line
		time.Sleep(time.Millisecond)
	}
	made := program()
	if again := program(); again != made {
		t.Errorf("%+v became %+v by itself", made, again)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	for program() == made {
		time.Sleep(time.Millisecond)
	}
	for program().Command != "sleep" {
		time.Sleep(time.Millisecond)
	}
}
