// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ErrGone is returned for a process that does not exist any more, or whose pid belongs to another
// process, or to a thread, by now. It wraps errdefs.ErrNotFound. Any other error means that the
// kernel could not be asked, and not that the process is gone.
var ErrGone = fmt.Errorf("the process is gone: %w", errdefs.ErrNotFound)

// Answer is the state of a process after the kernel was asked about it.
type Answer int

// The three answers.
const (
	CannotTell Answer = iota // the kernel could not be asked
	Alive
	Gone // it has ended, whether it was reaped or not
)

// String names the answer.
func (a Answer) String() string {
	switch a {
	case Alive:
		return "alive"
	case Gone:
		return "gone"
	default:
		return "cannot tell"
	}
}

// Open opens a pidfd of the process that has a pid now, which the caller closes. It returns
// [ErrGone] if there is none, and where the number belongs to a thread that is not the first of its
// process: the kernel answers ENOENT to that, and EINVAL before Linux 6.15 (pidfd_open(2)). Any
// other error means that the kernel could not be asked.
func Open(pid int) (fd int, err error) {
	if pid <= 0 {
		return -1, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	fd, err = unix.PidfdOpen(pid, 0) // close-on-exec, always
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), absent(pid):
		return -1, ErrGone
	}
	return -1, fmt.Errorf("pidfd_open: %w", err)
}

// absent reports whether nothing has a pid, neither a process nor a thread. It needs no descriptor
// and no kernel memory, either of which may be exhausted.
func absent(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// Send sends a signal to the process of a pidfd; signal 0 only asks whether there still is one, and
// a zombie is one. It returns [ErrGone] when the process was reaped.
func Send(fd int, sig unix.Signal) error {
	err := unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// Ask asks whether the process of a pidfd has ended.
func Ask(fd int) Answer { return poll(fd, 0) }

// WaitEnd waits until the process of a pidfd has ended, at most for the given time or until ctx
// ends. It asks once even if most is 0.
func WaitEnd(ctx context.Context, fd int, most time.Duration) Answer {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for wait := time.Duration(0); ; wait = 10 * time.Millisecond {
		if a := poll(fd, wait); a != Alive || ctx.Err() != nil {
			return a
		}
	}
}

func poll(fd int, wait time.Duration) Answer {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(wait.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return CannotTell
		case n == 0:
			return Alive
		case fds[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0:
			return Gone
		default: // it is not a pidfd
			return CannotTell
		}
	}
}

// pidOf returns the pid of a pidfd's process (pidfd_open(2), "Pid" in /proc/self/fdinfo). The error
// is [ErrGone] if the process was reaped.
func pidOf(fd int) (uint32, error) {
	if err := Send(fd, 0); errors.Is(err, ErrGone) {
		return 0, err // without a descriptor, of which there may be none
	}
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, fmt.Errorf("ask for the process of a pidfd: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		v, ok := strings.CutPrefix(line, "Pid:")
		if !ok {
			continue
		}
		pid, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32)
		if err != nil {
			return 0, fmt.Errorf("ask for the process of a pidfd: %w", err)
		}
		if pid <= 0 { // it was reaped just now
			return 0, ErrGone
		}
		return uint32(pid), nil
	}
	return 0, fmt.Errorf("ask for the process of a pidfd: descriptor %d is not one", fd)
}

// Stat holds the fields of /proc/PID/stat that berth reads (proc_pid_stat(5)).
type Stat struct {
	State      byte   // field 3; 'Z' is a zombie
	Parent     int    // field 4
	Threads    int    // field 20; 0 if the process was reaped during the reading
	StartTicks uint64 // field 22
	ExitStatus uint32 // field 52, a wait status; 0 without CAP_SYS_PTRACE
	Program    Program
}

// Program tells the program that a process executes from the one that it executed before: an exec
// changes it. It proves nothing else, and consists of fields that a process cannot hide from
// others.
type Program struct {
	Command string // field 2: the process may give itself another name
	// field 26, the address of its code; the same for all programs without CAP_SYS_PTRACE
	Code  uint64
	Stack uint64 // field 28, likewise of its stack
}

// ReadStat reads /proc/PID/stat, which does not take the lock on the process's memory map. It
// returns [ErrGone] when nothing has the pid. Any other error means that the kernel could not be
// asked.
func ReadStat(pid uint32) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/stat")
	// ENOENT for a process that exists means that /proc hides it.
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)) && absent(int(pid)) {
		return Stat{}, ErrGone
	}
	if err != nil {
		return Stat{}, err
	}
	st, err := parseStat(b)
	if err != nil {
		return Stat{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return st, nil
}

// parseStat reads the content of /proc/PID/stat.
func parseStat(b []byte) (Stat, error) {
	// The command, field 2, is in parentheses and may contain anything, parentheses included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Stat{}, fmt.Errorf("no command in %q", b)
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3
	if len(f) < 50 {
		return Stat{}, fmt.Errorf("only %d fields", len(f)+2)
	}
	parent, err := strconv.Atoi(f[4-3])
	if err != nil {
		return Stat{}, fmt.Errorf("parent: %w", err)
	}
	threads, err := strconv.Atoi(f[20-3])
	if err != nil {
		return Stat{}, fmt.Errorf("threads: %w", err)
	}
	start, err := strconv.ParseUint(f[22-3], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("start time: %w", err)
	}
	status, err := strconv.ParseUint(f[52-3], 10, 32)
	if err != nil {
		return Stat{}, fmt.Errorf("exit status: %w", err)
	}
	st := Stat{
		State:      f[0][0],
		Parent:     parent,
		Threads:    threads,
		StartTicks: start,
		ExitStatus: uint32(status),
	}
	st.Program.Command = string(b[bytes.IndexByte(b, '(')+1 : i])
	st.Program.Code, err = strconv.ParseUint(f[26-3], 10, 64)
	if err == nil {
		st.Program.Stack, err = strconv.ParseUint(f[28-3], 10, 64)
	}
	if err != nil {
		return Stat{}, fmt.Errorf("addresses: %w", err)
	}
	return st, nil
}
