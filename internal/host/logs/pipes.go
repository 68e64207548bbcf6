// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/retry"
)

// socket is the name of the logger's socket in Dir; logger/logger.c describes its protocol.
const socket = "logger"

// loggerTimeout bounds each exchange with the logger, which answers at once unless it was stopped.
const loggerTimeout = 2 * time.Second

// FIFOs returns the shim's arguments for stdin, stdout and stderr: paths of FIFOs, or the URI by
// which it starts the logger. They are empty for streams that the container does not have.
func (l *Log) FIFOs() (stdin, stdout, stderr string) {
	if l.o.Stdin {
		stdin = l.o.in("stdin")
	}
	for _, s := range l.streams {
		where := l.o.in(s.name)
		if l.direct {
			uri := url.URL{Scheme: "binary", Path: l.o.LoggerProgram, RawQuery: "io=" + url.QueryEscape(l.o.Dir)}
			where = uri.String()
		}
		if s.index == 0 {
			stdout = where
		} else {
			stderr = where
		}
	}
	return stdin, stdout, stderr
}

// Started is called once the shim has made the task, or never will, and so holds its ends of the
// pipes: from now on a pipe without writers has ended. It returns an error if the logger does not
// answer. The output would be lost: do not start the container then.
func (l *Log) Started() error {
	l.mu.Lock()
	for _, f := range l.mu.keep {
		_ = f.Close()
	}
	l.mu.keep = nil
	l.mu.Unlock()
	var err error
	l.once.Do(func() {
		defer close(l.started)
		if !l.direct || l.isClosed() {
			return
		}
		if err = l.keeper.dial(); err != nil {
			err = fmt.Errorf("take the container's output from berth-logger: %w", err)
		}
	})
	return err
}

// keeper is the connection to the container's berth-logger, the program that keeps the pipes open
// while berth is away. As long as a pipe is needed and berth is there, a logger is there, too, or
// is started again.
type keeper struct {
	o       *Options
	streams []*stream       // which get their pipes from the logger
	closing <-chan struct{} // closed by Close

	mu struct {
		sync.Mutex
		conn   *os.File // nil for none
		closed bool     // there is none any more
	}
}

// connect attaches the pipe to each stream that has not ended, once started is closed. A stream
// without one has ended. It is false when Close came first.
func (k *keeper) connect(started <-chan struct{}) bool {
	select {
	case <-started:
	case <-k.closing:
		return false
	}
	for wait := firstWait; !k.connected(); {
		err := k.dial()
		switch {
		case err == nil:
		case gone(err) && k.takeBack():
			return !retry.Closed(k.closing)
		case errors.Is(err, unix.ENOENT):
			return true // the logger ended by itself: nothing was left in the pipes
		case errors.Is(err, unix.ECONNREFUSED):
			k.o.Note(event.LoggerKilled{})
			return true
		default:
			k.o.Note(event.LoggerSilent{Err: err.Error()})
			if !sleep(k.closing, &wait) {
				return false
			}
		}
	}
	return !retry.Closed(k.closing)
}

// gone reports whether an error means that no logger listens: it has ended, or its socket was
// removed.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

// connected reports whether no stream needs the logger any more.
func (k *keeper) connected() bool {
	for _, s := range k.streams {
		if !s.ended && !s.attached() {
			return false
		}
	}
	return true
}

// dial takes the pipes from the logger.
func (k *keeper) dial() error {
	conn, pipes, err := dial(k.o.Dir)
	if err != nil {
		return err
	}
	k.notePipes(pipes)
	if err := k.callsLogger(conn); err != nil && !retry.Closed(k.closing) {
		for _, fd := range pipes {
			_ = unix.Close(fd)
		}
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, fd := range pipes {
		if k.o.AnyUser {
			_ = unix.Fchmod(fd, 0o622) // of both ends; without it, the output works and /dev/stdout does not
		}
		s := k.stream(i)
		if s == nil || k.mu.closed { // a terminal has one stream
			_ = unix.Close(fd)
			continue
		}
		if err := s.attach(fd); err != nil {
			return fmt.Errorf("read from the pipe of %s: %w", s.name, err)
		}
	}
	return nil
}

// stream returns the one that has an index, or nil if there is none.
func (k *keeper) stream(index int) *stream {
	for _, s := range k.streams {
		if s.index == index {
			return s
		}
	}
	return nil
}

// close ends the connection for good; the logger waits for the next berth. No stream gets a pipe
// any more.
func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.closed = true
	k.hangUpLocked()
}

// hangUpLocked ends the connection; the logger waits for another.
func (k *keeper) hangUpLocked() {
	if k.mu.conn != nil {
		_ = k.mu.conn.Close()
		k.mu.conn = nil
	}
}

// dismiss tells the logger that all output was taken.
func (k *keeper) dismiss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.conn != nil {
		if raw, err := k.mu.conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.Send(int(fd), []byte("q"), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			})
		}
	}
	k.hangUpLocked()
}

// dismiss ends the logger of dir, if there is one.
func dismiss(dir string) {
	conn, pipes, err := dial(dir)
	if err != nil {
		return
	}
	for _, fd := range pipes {
		_ = unix.Close(fd)
	}
	_ = unix.Send(conn, []byte("q"), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	_ = unix.Close(conn)
}

// dial connects to the logger of dir and receives the read ends of stdout and stderr.
func dial(dir string) (conn int, pipes []int, err error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	defer unix.Close(d)
	conn, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(conn)
			conn = -1
		}
	}()
	patience := unix.NsecToTimeval(loggerTimeout.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, option, &patience); err != nil {
			return conn, nil, err
		}
	}
	// Through the descriptor, for a socket's name must be short.
	short := filepath.Join("/proc/self/fd", strconv.Itoa(d), socket)
	for {
		err = unix.Connect(conn, &unix.SockaddrUnix{Name: short})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return conn, nil, err
	}
	control := make([]byte, unix.CmsgSpace(2*4))
	var n, got int
	for {
		n, got, _, _, err = unix.Recvmsg(conn, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return conn, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:got])
	if err != nil {
		return conn, nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return conn, nil, err
		}
		pipes = append(pipes, fds...)
	}
	if n != 1 || len(pipes) != 2 {
		for _, fd := range pipes {
			_ = unix.Close(fd)
		}
		return conn, nil, fmt.Errorf("berth-logger sent %d descriptors, not 2", len(pipes))
	}
	return conn, pipes, nil
}
