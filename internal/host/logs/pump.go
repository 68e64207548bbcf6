// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/retry"
)

// Failures are retried after firstWait, which doubles up to lastWait.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 5 * time.Second
)

// pipeSize is how much output may wait in a pipe while berth is away.
const pipeSize = 256 << 10

// stream is one of stdout and stderr.
type stream struct {
	name  string
	index int // in the cursor

	// Only the stream's pump uses these; others than size need the turn as well.
	spool     *os.File
	size      int64     // of the spool
	consumed  int64     // how much of the spool is in the log
	punched   int64     // up to where the spool has given its pages back
	resetting bool      // the spool is being emptied: see reset
	noSplice  bool      // the spool's file system has no splice
	noPunch   bool      // nor holes
	inherited bool      // an earlier berth read the stream; false after the first round
	ended     bool      // the pipe has ended, and all of its output is in the log
	quick     int       // how many small rounds have followed each other closely: see gather
	rounded   time.Time // when the last round ended

	failure atomic.Pointer[error] // why its output cannot be logged now
	splice  func(from, to int, offset int64) (int64, error)
	asked   retry.Wake    // holds a value when a flush may wait
	left    chan struct{} // closed when the pump has ended

	mu struct {
		sync.Mutex
		pipe    *os.File // its read end; nil: not there yet, or no more
		watched bool     // by Go's poller: see watch
		waiting []chan struct{}
	}
}

func newStream(name string, index int) *stream {
	return &stream{
		name:   name,
		index:  index,
		splice: splice,
		asked:  retry.NewWake(),
		left:   make(chan struct{}),
	}
}

// attach gives the stream its pipe. The descriptor is the stream's from now on.
func (s *stream) attach(fd int) error {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize)
	pipe, err := newPipe(fd, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.pipe = pipe
	return nil
}

func (s *stream) attached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.pipe != nil
}

// detach closes the pipe and wakes the pump.
func (s *stream) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.pipe != nil {
		_ = s.mu.pipe.Close()
	}
}

// flush asks the pump to bring the current content of the pipe into the log. The channel is closed
// then.
func (s *stream) flush() <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting = append(s.mu.waiting, done)
	s.wakeLocked()
	s.asked.Up()
	return done
}

func (s *stream) wakeLocked() {
	if s.mu.watched && len(s.mu.waiting) > 0 {
		_ = s.mu.pipe.SetReadDeadline(time.Unix(1, 0))
	}
}

// over reports whether the stream has ended and all of its output is in the log.
func (s *stream) over() bool {
	select {
	case <-s.left:
		return s.ended
	default:
		return false
	}
}

// pump moves one stream to the log until it ends, or Close. Nothing else ends it: failures are
// retried. Each round moves the content of the pipe to the spool, and from there to the log, before
// the next round: output that cannot be written waits in the pipe, and then the container waits.
func (l *Log) pump(s *stream) {
	defer close(s.left)
	if s.ended || !l.append(s, false) { // the output that an earlier berth took
		return
	}
	if !s.attached() {
		l.end(s)
		return
	}
	for wait := firstWait; ; {
		n, err := s.take()
		switch {
		case l.isClosed():
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = l.answer(s)
		case err == nil && n == 0:
			if s.inherited && !l.direct {
				l.o.Note(event.OutputMayMiss{Stream: s.name})
			}
			l.end(s)
			return
		case err == nil:
			s.inherited = false
			l.bytes.Add(n)
			l.tees.copied(s, n)
			if !l.append(s, false) {
				return
			}
			l.gather(s, n)
		}
		if err == nil {
			if wait != firstWait {
				s.ok(l.o.Note)
			}
			wait = firstWait
			continue
		}
		s.fail(l.o.Note, err)
		if !sleep(l.closing, &wait) {
			return
		}
	}
}

// take moves bytes from the pipe to the end of the spool, and waits for some. None is the end. The
// error is os.ErrDeadlineExceeded when a flush waits.
func (s *stream) take() (n int64, err error) {
	pipe, watched, asked := s.source()
	if asked {
		return 0, os.ErrDeadlineExceeded
	}
	if !watched {
		if n, err = s.takeFrom(pipe); !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		if err := s.watch(true); err != nil {
			return 0, err
		}
		pipe, _, _ = s.source()
	}
	werr := pipe.Read(func(fd uintptr) bool {
		n, err = s.takeNow(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	if werr != nil {
		return 0, werr
	}
	return n, err
}

// source returns the pipe, whether Go watches it, and whether a flush waits.
func (s *stream) source() (pipe syscall.RawConn, watched, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pipe, _ = s.mu.pipe.SyscallConn() // of a file there is one
	return pipe, s.mu.watched, len(s.mu.waiting) > 0
}

// takeFrom takes without waiting. The error is EAGAIN when there is nothing.
func (s *stream) takeFrom(pipe syscall.RawConn) (n int64, err error) {
	cerr := pipe.Control(func(fd uintptr) {
		n, err = s.takeNow(int(fd))
	})
	return n, cmp.Or(cerr, err)
}

// chunk is how much one round moves at most.
const chunk = 256 << 10

// splice moves bytes within the kernel.
func splice(from, to int, offset int64) (int64, error) {
	return unix.Splice(from, nil, to, &offset, chunk, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
}

// takeNow takes without waiting. The error is EAGAIN when there is nothing. The size of the spool
// shows how much splice moved, even to a berth that starts after this one was killed before it
// returned.
func (s *stream) takeNow(fd int) (int64, error) {
	for !s.noSplice {
		n, err := s.splice(fd, int(s.spool.Fd()), s.size)
		switch {
		case err == nil:
			s.size += n
			return n, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL):
			s.noSplice = true // then a kill within the next two calls loses the output read
		default:
			return 0, err
		}
	}
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err != nil || n <= 0 {
		return 0, err
	}
	if _, err := s.spool.WriteAt(buf[:n], s.size); err != nil {
		return 0, err
	}
	s.size += int64(n)
	return int64(n), nil
}

// answer carries out a flush.
func (l *Log) answer(s *stream) (err error) {
	s.mu.Lock()
	waiting := s.mu.waiting
	s.mu.waiting = nil
	if s.mu.watched {
		err = s.mu.pipe.SetReadDeadline(time.Time{})
	}
	s.mu.Unlock()
	if err != nil || len(waiting) == 0 {
		return err
	}
	// Only the current content of the pipe: a process may write for ever.
	pipe, _, _ := s.source()
	rest := 0
	cerr := pipe.Control(func(fd uintptr) {
		rest, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	})
	err = cmp.Or(cerr, err)
	for ok := true; err == nil && rest > 0 && ok; {
		var n int64
		n, err = s.takeFrom(pipe)
		rest -= int(n)
		l.bytes.Add(n)
		l.tees.copied(s, n)
		ok = err == nil && n > 0 && l.append(s, false)
	}
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	if err != nil {
		s.mu.Lock() // it is asked again
		s.mu.waiting = append(s.mu.waiting, waiting...)
		s.wakeLocked()
		s.mu.Unlock()
		return err
	}
	if l.append(s, true) {
		s.inherited = false
		for _, w := range waiting {
			close(w)
		}
	}
	return nil
}

// end brings the rest of an ended stream into the log.
func (l *Log) end(s *stream) {
	if !l.append(s, true) || l.takeTurn(context.Background()) != nil {
		return
	}
	defer func() { <-l.turn }()
	s.ended = true
	if err := l.out.save(); err != nil { // a later berth finds the end of the pipe once more
		l.o.Note(event.OutputEndUnrecorded{Stream: s.name, Err: err.Error()})
	}
}

var errSilent = errors.New("the log's disk does not answer")

// append brings the whole lines of the spool into the log; with last, the unfinished line as well.
// It does not give up before Close, and returns false then: a full disk blocks the container's
// output but does not lose it. Between attempts it leaves the turn to others.
//
// This is the one place where output leaves the spool, in order and exactly once.
func (l *Log) append(s *stream, last bool) bool {
	for wait := firstWait; ; {
		if l.takeTurn(context.Background()) != nil {
			return false
		}
		silent := time.AfterFunc(silentTimeout, func() { s.fail(l.o.Note, errSilent) })
		err := l.out.append(s, last)
		silent.Stop()
		<-l.turn
		if l.isClosed() {
			return false
		}
		if err == nil {
			s.ok(l.o.Note)
			return true
		}
		s.fail(l.o.Note, err)
		if !sleep(l.closing, &wait) {
			return false
		}
	}
}

// sleep waits, longer each time. It is false when closing was closed first.
func sleep(closing <-chan struct{}, wait *time.Duration) bool {
	now := *wait
	*wait = min(2**wait, lastWait)
	return retry.Sleep(closing, now)
}
