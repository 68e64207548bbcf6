// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenPipe opens for reading the pipe with an inode, by way of the process p, or of its parent,
// which has it open. The descriptor does not block. It returns [ErrGone] if neither has it any
// more; any other error means that the kernel could not be asked.
//
// It is for a pipe whose last reader has gone: the pipe and its content exist for as long as a
// process has the write end open. A process cannot pass another pipe for it, because the inode is
// compared.
func OpenPipe(p Process, inode uint64) (fd int, err error) {
	held, p, err := OpenProcess(p)
	if err != nil {
		return -1, fmt.Errorf("look for a pipe of process %d: %w", p.Pid, err)
	}
	defer unix.Close(held)
	fd, err = pipeOf(int(p.Pid), inode)
	if !errors.Is(err, ErrGone) {
		return fd, err
	}
	st, err := ReadStat(p.Pid)
	if err != nil {
		return -1, fmt.Errorf("look for a pipe of process %d: %w", p.Pid, err)
	}
	return pipeOf(st.Parent, inode)
}

// pipeOf looks for a pipe among the open files of a process.
func pipeOf(pid int, inode uint64) (int, error) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	open, err := os.ReadDir(dir)
	if err != nil {
		return -1, fmt.Errorf("look for a pipe of process %d: %w", pid, err)
	}
	for _, e := range open {
		// A device may do something when it is opened, so that the name is asked first.
		name, err := os.Readlink(dir + e.Name())
		if err != nil || name != "pipe:["+strconv.FormatUint(inode, 10)+"]" {
			continue // most often it was closed meanwhile
		}
		fd, err := unix.Open(dir+e.Name(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return -1, fmt.Errorf("open a pipe of process %d: %w", pid, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Ino != inode || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			_ = unix.Close(fd) // the number stands for another file now
			continue
		}
		return fd, nil
	}
	return -1, fmt.Errorf("process %d has no pipe %d open: %w", pid, inode, ErrGone)
}
