// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"cmp"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// When gatherAfter small rounds of a stream have followed each other within gatherTime, its pump
// waits for gatherTime before the next. A round is small that has moved less than gatherBelow.
//
// Otherwise a container that writes line by line wakes berth with each line, and both spend most of
// their time waiting for each other at the pipe. The pipe does not run full meanwhile, unless 256
// MB come in a second.
const (
	gatherAfter = 3
	gatherTime  = time.Millisecond
	gatherBelow = 64 << 10
)

// gather is called after a round that has moved n bytes, and waits for more output if the stream
// has many small rounds. Neither a flush nor Close waits for that. Output in a FIFO is not delayed,
// because the kernel drops it if the shim closes the FIFO.
func (l *Log) gather(s *stream, n int64) {
	last := s.rounded
	s.rounded = time.Now()
	switch {
	case !l.direct:
		return
	case n == chunk || s.rounded.Sub(last) > l.gatherTime:
		s.quick = 0
		return
	case n >= gatherBelow:
		return
	}
	if s.quick < gatherAfter {
		s.quick++
		return
	}
	_ = s.watch(false) // unwatched is only cheaper, so an error changes nothing
	t := time.NewTimer(l.gatherTime)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.asked:
	case <-l.closing:
	}
	s.rounded = time.Now()
}

// watch replaces the pipe by a duplicate that Go's poller watches, or does not watch. While a pipe
// is watched, the kernel wakes a thread of berth at every write, even if no goroutine waits for it.
func (s *stream) watch(watched bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.watched == watched {
		return nil
	}
	raw, err := s.mu.pipe.SyscallConn()
	if err != nil {
		return err
	}
	var fd int
	cerr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err := cmp.Or(cerr, err); err != nil {
		return err
	}
	pipe, err := newPipe(fd, watched)
	if err != nil {
		return err
	}
	_ = s.mu.pipe.Close()
	s.mu.pipe, s.mu.watched = pipe, watched
	s.wakeLocked()
	return nil
}

// newPipe makes a file of a descriptor, which does not block. The descriptor is the file's from now
// on.
func newPipe(fd int, watched bool) (*os.File, error) {
	// Go's poller watches the file if it does not block when os.NewFile is called.
	err := unix.SetNonblock(fd, watched)
	f := os.NewFile(uintptr(fd), "pipe")
	if err = errors.Join(err, unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
