// SPDX-License-Identifier: Apache-2.0

package join

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maker is berth-exec: the process that berth starts, a child of berth's. It makes the process that
// executes the program, and stays its parent: it reaps that one, and every child that the program
// makes for its own parent. It ends with the last of them, and so does the wait for it.
type maker struct {
	pid int
	// on which it reports the end of the program, and berth that the program is not needed any more
	socket *os.File

	said chan struct{} // closed when it has reported the end, or never will
	gone chan struct{} // closed when it was reaped
	// Set before said is closed; err if there is no report.
	executed bool
	code     uint32
	err      error

	mu     sync.Mutex
	reaped bool // its pid may be another's
}

// errKilled is the error of a process whose maker was killed, which the maker itself can only be
// from outside of the container.
var errKilled = errors.New("berth-exec was killed, which alone knows how the program has ended")

// fork starts berth-exec with these descriptors: the first from 0 on, then its socket, then the
// groups. It is in no group of the container's, and its own process never will be: until the new
// process executes berth-exec, this thread waits in the kernel, and with it every fork and garbage
// collection; and the memory of the new process is berth's until then.
func (j *Joiner) fork(token string, files, groups []*os.File) (*maker, error) {
	ours, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	for again := true; ; again = false {
		j.mu.Lock()
		program := j.program
		j.mu.Unlock()
		attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{Setpgid: true}}
		for _, list := range [][]*os.File{files, {theirs}, groups} {
			for _, f := range list {
				attr.Files = append(attr.Files, rawFD(f))
			}
		}
		// A file that is not among these may have been replaced by the time that it is executed
		// (Go's #61751).
		path := fmt.Sprintf("/proc/self/fd/%d", len(attr.Files))
		attr.Files = append(attr.Files, rawFD(program))
		pid, err := syscall.ForkExec(path, []string{"berth-exec", token}, attr)
		runtime.KeepAlive(program)
		if err == nil {
			m := &maker{pid: pid, socket: ours, said: make(chan struct{}), gone: make(chan struct{})}
			go m.watch()
			return m, nil
		}
		err = fmt.Errorf("start berth-exec: %w", err)
		if again && (errors.Is(err, unix.ETXTBSY) || errors.Is(err, unix.EACCES)) {
			// A container that executed the copy by a link to /proc/self/exe has it open for
			// writing, or has changed its mode: that it can, and nothing else.
			if err = j.renew(program); err == nil {
				continue
			}
		}
		_ = ours.Close()
		return nil, err
	}
}

// watch reads how the program has ended, and reaps the maker.
func (m *maker) watch() {
	defer close(m.gone)
	var b [3]byte
	if _, err := io.ReadFull(m.socket, b[:]); err == nil && b[0] == 'X' {
		m.executed, m.code = b[1] != 0, uint32(b[2])
	} else {
		m.err = errKilled
	}
	close(m.said)
	_, _ = io.Copy(io.Discard, m.socket) // until it ends, which closes the socket
	_ = m.socket.Close()
	// A moment passes between that and the end, for which a thread waits. It does not reap yet, so
	// that the pid is not reused until it does.
	for {
		if err := unix.Waitid(unix.P_PID, m.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reaped = true
	_, _ = unix.Wait4(m.pid, nil, 0, nil)
}

// giveUp makes the maker kill its processes for the program, reap them, and end. In a group that is
// frozen that may take until it is thawed.
func (m *maker) giveUp() {
	_, _ = m.socket.Write([]byte{'K'}) // the only byte that it is sent: there is room for it
}

// kill kills the maker itself.
func (m *maker) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.reaped {
		_ = unix.Kill(m.pid, unix.SIGKILL)
	}
}
