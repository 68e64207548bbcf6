// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"fmt"
	"os"
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

// bootID keeps the ID of the running kernel's boot once it was read.
var bootID struct {
	sync.Mutex
	known string
}

// BootID returns the ID of the running kernel's boot (random(4)). If it cannot be read now, BootID
// returns an error, and the next call tries again.
func BootID() (string, error) {
	bootID.Lock()
	defer bootID.Unlock()
	if bootID.known == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return "", fmt.Errorf("read the ID of this boot: %w", err)
		}
		bootID.known = strings.TrimSpace(string(b))
	}
	return bootID.known, nil
}

// OpenProcess opens a pidfd of p and completes p's identity. It returns [ErrGone] if p is gone for
// certain. Any other error means that the kernel could not be asked. The caller closes the pidfd.
//
// A pidfd stands for one process for ever. It does not keep that process's pid from being given to
// another process once its own was reaped, so each step that goes by the pid may find another
// process. If p comes from a record, its start time shows that, and is compared first. If p was
// made just now, the caller has the pid from the runtime, which has not reported its end.
func OpenProcess(p Process) (fd int, identity Process, err error) {
	if p.Pid == 0 {
		return -1, p, fmt.Errorf("its pid is not known: %w", ErrGone)
	}
	boot, err := BootID()
	if err != nil {
		return -1, p, err
	}
	if p.BootID != "" && p.BootID != boot {
		return -1, p, fmt.Errorf("it belongs to an earlier boot: %w", ErrGone)
	}
	if p.StartTicks != 0 {
		st, err := ReadStat(p.Pid)
		switch {
		case errors.Is(err, ErrGone):
			return -1, p, err
		case err == nil && st.StartTicks != p.StartTicks:
			return -1, p, errReused
		}
	}
	fd, err = Open(int(p.Pid))
	if err != nil {
		return -1, p, err
	}
	identity, err = identify(fd, p)
	if err != nil {
		_ = unix.Close(fd)
		return -1, p, err
	}
	return fd, identity, nil
}

// errReused is [ErrGone] for a process whose pid was given to another one.
var errReused = fmt.Errorf("its pid belongs to another process now: %w", ErrGone)

// identify completes the identity of p, of which fd is the pidfd, or returns [ErrGone] if fd is the
// pidfd of another process. Any other error means that the kernel could not be asked.
//
// The values in /proc for a pid are about fd's process only while that has not been reaped, so
// identify checks after the reading whether it has been. If it has:
//
//   - A start time that was known and was found again is p's. p was started before fd was opened,
//     and a process that got its pid after fd's process was reaped was started later than that.
//   - A start time that was not known stays unknown: the value read may be about another process.
//     fd itself can still tell how p ended.
//
// An identity without a start time is of no use for a process that lives: a later berth would take
// another process for it.
func identify(fd int, p Process) (Process, error) {
	boot, err := BootID()
	if err != nil {
		return p, err
	}
	st, err := ReadStat(p.Pid)
	reaped := errors.Is(Send(fd, 0), ErrGone)
	switch {
	case p.StartTicks != 0 && err == nil && st.StartTicks != p.StartTicks:
		return p, errReused
	case p.StartTicks != 0 && err != nil && reaped:
		return p, ErrGone
	case err != nil && !reaped:
		return p, err
	case !reaped:
		p.StartTicks = st.StartTicks
	}
	p.BootID = boot
	return p, nil
}

// claim takes the pidfd that an earlier berth left for p. kept is false if that one is not p's, as
// after a start that was undone and made again under the same ID, or if p is gone and it is another
// process's. Then claim has closed it and opened another, or returns [ErrGone]. After any other
// error the pidfd that was left stays the caller's: it may have the exit code, and its process
// could not be determined.
func claim(left int, p Process) (fd int, _ Process, kept bool, err error) {
	pid, err := pidOf(left)
	if err != nil && !errors.Is(err, ErrGone) {
		return -1, p, true, err
	}
	reaped := err != nil
	if !reaped && (p.Pid == 0 || p.Pid == pid) {
		p.Pid = pid
		identity, err := identify(left, p)
		if err == nil || !errors.Is(err, ErrGone) {
			return left, identity, true, err
		}
		reaped = !errors.Is(err, errReused) // just now
	}
	fd, identity, err := OpenProcess(p)
	switch {
	case errors.Is(err, ErrGone) && reaped:
		// Both were reaped. No other process can have been watched under this ID since, so the
		// pidfd is p's.
		if p.BootID == "" {
			p.BootID, _ = BootID()
		}
		return left, p, true, nil
	case err != nil && !errors.Is(err, ErrGone):
		return -1, p, true, err
	}
	_ = unix.Close(left)
	return fd, identity, false, err
}
