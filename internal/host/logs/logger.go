// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/retry"
)

// pipesName is a file in Dir that records the inodes of the container's pipes, so that they can be
// found again if the logger is gone.
const pipesName = "pipes"

// A logger that ends within steady of its start is not replaced at once, but after a wait.
const steady = time.Second

// attend returns once all is closed, or after Close. Until then it puts another logger in the place
// of one that ends although the pipes are still needed: berth has their read ends meanwhile, so the
// container notices nothing. Without a logger, the end of berth would be the end of the last
// reader.
func (k *keeper) attend(all <-chan struct{}) {
	wait, said, begun := firstWait, false, time.Time{}
	for {
		k.awaitHangUp()
		if retry.Closed(all) || retry.Closed(k.closing) || !k.needsLogger() {
			return
		}
		if time.Since(begun) < steady && !k.sleepUnless(all, &wait) {
			return
		}
		begun = time.Now()
		switch err := k.replaceLogger(); {
		case err == nil:
			wait, said = firstWait, false
			k.o.Note(event.LoggerReplaced{})
		case !said:
			said = true
			k.o.Note(event.LoggerNotReplaced{Err: err.Error()})
		}
	}
}

// sleepUnless waits, longer each time. It is false when all was closed, or Close came, first.
func (k *keeper) sleepUnless(all <-chan struct{}, wait *time.Duration) bool {
	t := time.NewTimer(*wait)
	defer t.Stop()
	*wait = min(2**wait, lastWait)
	select {
	case <-t.C:
		return true
	case <-all:
	case <-k.closing:
	}
	return false
}

// awaitHangUp returns when the logger has ended the connection, or berth has. Without a connection
// it returns at once.
func (k *keeper) awaitHangUp() {
	k.mu.Lock()
	conn := k.mu.conn
	k.mu.Unlock()
	if conn == nil {
		return
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR), err == nil && n > 0:
			default:
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
}

// needsLogger reports whether a pipe has a writer, or something in it that is not in a spool yet.
// The name of the socket would not answer that: others can remove it.
func (k *keeper) needsLogger() bool {
	for _, s := range k.streams {
		if pipe, _, _ := s.source(); pipe != nil && inUse(pipe) {
			return true
		}
	}
	return false
}

// inUse reports whether a pipe has a writer or holds something. If that cannot be determined, the
// pipe is in use.
func inUse(pipe syscall.RawConn) (used bool) {
	err := pipe.Control(func(fd uintptr) {
		asked := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(asked, 0)
		used = err != nil || n == 0 || asked[0].Revents&unix.POLLHUP == 0 || asked[0].Revents&unix.POLLIN != 0
	})
	return used && err == nil // with an error, the pipe is closed
}

// replaceLogger starts another logger with the pipes, and connects to it.
func (k *keeper) replaceLogger() error {
	if retry.Closed(k.closing) {
		return os.ErrClosed
	}
	if k.o.LoggerProgram == "" {
		return errors.New("its program is not known")
	}
	pipes, err := k.readEnds()
	if err != nil {
		return err
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return errors.Join(err, closeAll(pipes))
	}
	defer ready.Close()
	files := slices.Concat(pipes, []*os.File{tell})
	if err := os.Remove(k.o.in(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, closeAll(files))
	}
	cmd := exec.Command(k.o.LoggerProgram, "io", k.o.Dir)
	// without the descriptors that systemd passed to berth
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	// a signal to berth's process group does not reach it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start berth-logger: %w", err), closeAll(files))
	}
	go func() { _ = cmd.Wait() }()
	_ = closeAll(files)
	_ = ready.SetReadDeadline(time.Now().Add(loggerTimeout))
	if _, err := ready.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("berth-logger is not ready: %w", err), cmd.Process.Kill())
	}
	conn, again, err := dial(k.o.Dir)
	if err != nil {
		return fmt.Errorf("connect to berth-logger: %w", err)
	}
	for _, fd := range again { // berth has them
		_ = unix.Close(fd)
	}
	return k.callsLogger(conn)
}

// readEnds opens the pipes once more, for stdout and stderr in this order. A terminal has one,
// which stands for both. An open file of its own, and not a duplicate, does not share berth's
// flags.
func (k *keeper) readEnds() (_ []*os.File, err error) {
	var ends [2]*os.File
	for i := range ends {
		s := k.stream(i)
		if s == nil {
			s = k.streams[0]
		}
		pipe, _, _ := s.source()
		if pipe == nil && len(k.streams) == len(ends) { // it has ended
			pipe, _, _ = k.stream(1 - i).source()
		}
		err = os.ErrClosed
		if pipe != nil {
			cerr := pipe.Control(func(fd uintptr) { ends[i], err = os.Open("/proc/self/fd/" + strconv.Itoa(int(fd))) })
			err = errors.Join(cerr, err)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the pipe of %s again: %w", s.name, err), closeAll(ends[:i]))
		}
	}
	return ends[:], nil
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// callsLogger makes a descriptor the connection to the logger, in the place of the one before.
func (k *keeper) callsLogger(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	conn := os.NewFile(uintptr(fd), socket)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.closed {
		return errors.Join(os.ErrClosed, conn.Close())
	}
	k.hangUpLocked()
	k.mu.conn = conn
	return nil
}

// notePipes writes down which pipes the container writes to. Without the file they are not found
// again when the logger has gone while berth was away, and nothing else is lost.
func (k *keeper) notePipes(fds []int) {
	if _, err := os.Lstat(k.o.in(pipesName)); err == nil {
		return
	}
	var text string
	for _, fd := range fds {
		inode, err := pipeOf(fd)
		if err != nil {
			return
		}
		text += strconv.FormatUint(inode, 10) + "\n"
	}
	_ = os.WriteFile(k.o.in(pipesName), []byte(text), 0o600)
}

// pipeOf returns the number by which a pipe is known.
func pipeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return 0, errors.New("it is not a pipe")
	}
	return st.Ino, nil
}

// takeBack opens the pipes by way of the processes that write to them, where the logger has gone
// while berth was away, and starts another logger. It returns false if that is not possible, for
// example because the container and its shim have ended, too.
//
// The pipes and their content exist for as long as a process has their write end open. A container
// that has written while there was no reader has got an error, or a SIGPIPE.
func (k *keeper) takeBack() bool {
	text, err := os.ReadFile(k.o.in(pipesName))
	if err != nil || k.o.Pipe == nil {
		return false
	}
	var inodes [2]uint64
	if _, err := fmt.Sscan(string(text), &inodes[0], &inodes[1]); err != nil {
		return false
	}
	found := false
	for _, s := range k.streams {
		if s.ended {
			continue
		}
		fd, err := k.o.Pipe(inodes[s.index])
		if err == nil {
			err = s.attach(fd)
		}
		found = found || err == nil
	}
	if !found {
		return false
	}
	k.o.Note(event.LoggerReplacedLate{})
	if err := k.replaceLogger(); err != nil { // attend tries again
		k.o.Note(event.LoggerNotReplaced{Err: err.Error()})
	}
	return true
}
