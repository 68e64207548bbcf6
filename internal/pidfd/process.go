// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Process identifies a process of this host so that another one that got the same pid later is not
// taken for it.
type Process struct {
	Pid uint32 `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: the instant of its start, in clock ticks after
	// boot. 0 means that it is not known.
	StartTicks uint64 `json:"startTicks,omitempty"`
	// BootID is /proc/sys/kernel/random/boot_id of the boot in which the process was started. Empty
	// means that it is not known.
	BootID string `json:"bootID,omitempty"`
}

// same reports whether q can be p: whether they agree in all that is known of both.
func (p Process) same(q Process) bool {
	return (p.Pid == 0 || q.Pid == 0 || p.Pid == q.Pid) &&
		(p.StartTicks == 0 || q.StartTicks == 0 || p.StartTicks == q.StartTicks) &&
		(p.BootID == "" || q.BootID == "" || p.BootID == q.BootID)
}

// BootID is the ID of the running kernel's boot (random(4)). It is empty if it cannot be read.
var BootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// open opens a pidfd of p and completes p's identity.
//
// A pidfd stands for one process for ever. It does not keep that process's pid from being given to
// another process once its own was reaped, so both steps that go by the pid may find another
// process:
//
//   - pidfd_open: if p comes from a record, its start time shows that. If p was made just now, the
//     caller has the pid from the runtime, which has not reported its end.
//   - the reading of /proc/PID/stat: see identify.
func open(p Process) (int, Process, error) {
	if p.Pid == 0 {
		return -1, p, fmt.Errorf("its pid is not known: %w", ErrGone)
	}
	if p.BootID != "" && p.BootID != BootID() {
		return -1, p, fmt.Errorf("it belongs to an earlier boot: %w", ErrGone)
	}
	fd, err := unix.PidfdOpen(int(p.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, p, ErrGone
	}
	if err != nil {
		return -1, p, fmt.Errorf("pidfd_open: %w", err)
	}
	unix.CloseOnExec(fd)
	identity, err := identify(fd, p)
	if err != nil {
		_ = unix.Close(fd)
		return -1, p, err
	}
	return fd, identity, nil
}

// identify completes the identity of p, of which fd is the pidfd, or returns [ErrGone] if fd is the
// pidfd of another process.
//
// What /proc says of a pid is about fd's process only while that has not been reaped, so it is
// looked at whether it has been after the reading. If it has:
//
//   - A start time that was known and was found again is p's. p was started before fd was opened,
//     and a process that got its pid after fd's process was reaped was started later than that.
//   - A start time that was not known stays so: what was read may be about another process. fd
//     itself can still say how p ended.
func identify(fd int, p Process) (Process, error) {
	st, err := readStat(p.Pid)
	mine := err == nil && !reaped(fd)
	switch {
	case p.StartTicks != 0 && err != nil:
		return p, ErrGone
	case p.StartTicks != 0 && st.startTicks != p.StartTicks:
		return p, fmt.Errorf("its pid belongs to another process now: %w", ErrGone)
	case mine:
		p.StartTicks = st.startTicks
	}
	p.BootID = BootID()
	return p, nil
}

// claim takes the pidfd that an earlier berth left for p. kept is false if that one is not p's, as
// after a start that was undone and made again under the same ID; then claim has closed it and
// opened another. claim owns left either way.
func claim(left int, p Process) (fd int, _ Process, kept bool, err error) {
	pid := pidOf(left)
	if pid > 0 && (p.Pid == 0 || p.Pid == uint32(pid)) { //nolint:gosec // a pid is not negative
		p.Pid = uint32(pid) //nolint:gosec // see above
		if identity, err := identify(left, p); err == nil {
			return left, identity, true, nil
		}
	}
	fd, identity, err := open(p)
	if errors.Is(err, ErrGone) && pid <= 0 {
		// Both were reaped. Nobody else can have been watched under this ID since, so it is p's.
		if p.BootID == "" {
			p.BootID = BootID()
		}
		return left, p, true, nil
	}
	_ = unix.Close(left)
	return fd, identity, false, err
}

// reaped reports whether the process of a pidfd was reaped. Signal 0 checks only whether there
// still is a process, and a zombie is one.
func reaped(fd int) bool {
	return errors.Is(unix.PidfdSendSignal(fd, 0, nil, 0), unix.ESRCH)
}

// ended reports whether the process of a pidfd has ended, be it reaped or not.
func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// pidOf is the pid of a pidfd's process (pidfd_open(2), "Pid" in /proc/self/fdinfo). It is not
// above 0 once the process was reaped.
func pidOf(fd int) int {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, _ := strconv.Atoi(strings.TrimSpace(v))
			return pid
		}
	}
	return 0
}

// stat is what berth reads of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	state      byte   // field 3; 'Z' is a zombie
	startTicks uint64 // field 22
	exitStatus uint32 // field 52, a wait status; 0 without CAP_SYS_PTRACE
}

func readStat(pid uint32) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The command, field 2, is in parentheses and may contain anything, parentheses included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("read /proc/%d/stat: no command in %q", pid, b)
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3
	if len(f) < 50 {
		return stat{}, fmt.Errorf("read /proc/%d/stat: only %d fields", pid, len(f)+2)
	}
	start, err := strconv.ParseUint(f[22-3], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("read /proc/%d/stat: start time: %w", pid, err)
	}
	status, err := strconv.ParseUint(f[52-3], 10, 32)
	if err != nil {
		return stat{}, fmt.Errorf("read /proc/%d/stat: exit status: %w", pid, err)
	}
	return stat{state: f[0][0], startTicks: start, exitStatus: uint32(status)}, nil
}
