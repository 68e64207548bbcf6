// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// KillNamespace sends SIGKILL to every process of the PID namespace whose first process p is, and
// of those below: they have no other future, because the first one is about to end, and the kernel
// ends all others with it. It returns their pids. There are none if p shares its PID namespace, and
// the error is [ErrGone] if p is gone.
//
// It looks at each process of this host. It is for an end that does not come, and for nothing that
// happens often.
func KillNamespace(p Process) (pids []int, err error) {
	fd, p, err := OpenProcess(p)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if first, err := isInit(p.Pid); err != nil || !first {
		return nil, err
	}
	space, err := namespaceOf(int(p.Pid))
	if err != nil {
		return nil, unread(p.Pid, err)
	}
	if Ask(fd) == Gone { // the values read may be about another process
		return nil, ErrGone
	}
	own, err := namespaceOf(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("look at the PID namespace of berth: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	errs := []error{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if now, err := namespaceOf(pid); err != nil || now == own {
			continue // it is none of them, or it has ended since
		}
		killed, err := killWithin(pid, space)
		if killed {
			pids = append(pids, pid)
		}
		errs = append(errs, err)
	}
	return pids, errors.Join(errs...)
}

// namespace identifies a namespace (namespaces(7)).
type namespace struct{ dev, ino uint64 }

// namespaceOf returns the PID namespace that a process is in.
func namespaceOf(pid int) (namespace, error) {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st)
	return namespace{st.Dev, st.Ino}, err
}

// killWithin kills a process if it is in a PID namespace or in one below. Its place is read after
// its pidfd was opened: if the pid was given to another process before, the answer is about that
// one, and if it is given to another one later, the pidfd does not follow.
func killWithin(pid int, space namespace) (killed bool, err error) {
	fd, err := Open(pid)
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if inside, err := isWithin(pid, space); err != nil || !inside {
		return false, nil // it has ended since
	}
	switch err := Send(fd, unix.SIGKILL); {
	case errors.Is(err, ErrGone):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}

// isWithin reports whether a process is in a PID namespace, or in one below that.
func isWithin(pid int, space namespace) (bool, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err != nil || (namespace{st.Dev, st.Ino}) == space {
			_ = unix.Close(fd)
			return err == nil, err
		}
		var above int
		above, err = unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		_ = unix.Close(fd)
		fd = above
	}
	if errors.Is(err, unix.EPERM) { // the namespace above is that of this berth, or above it
		return false, nil
	}
	return false, err
}
