// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// DefaultMaxLine is how many bytes of a line go into one log line, if Options do not say.
const DefaultMaxLine = 16 << 10

// Options describe a container's stdio.
type Options struct {
	Dir            string // of FIFOs and spools; this package's alone
	Path           string // of the CRI log; "": output is discarded
	Stdin          bool
	Stdout, Stderr bool
	MaxLine        int // bytes
	Logger         *slog.Logger
}

// Log is one container's stdio. Its methods may be called from any goroutine.
type Log struct {
	o       Options
	streams []*stream
	stdin   *os.File // both ends, so that the container's stdin stays open
	drained chan struct{}
	closing chan struct{} // closed by Close
	once    sync.Once

	mu struct { // the log lock: held for one round
		sync.Mutex
		out    *os.File // nil: discard
		inode  uint64
		length int64 // of the log, as far as it is whole
		cursor *os.File
		stats  Stats
		keep   []*os.File // our own ends of the FIFOs, until Started
	}
}

// Stats is for a person.
type Stats struct {
	Bytes, Lines int64
	LastErr      error // of writing the log; nil once it works again
}

// stream is one of stdout and stderr.
type stream struct {
	name     string
	index    int // in the cursor
	fifo     *os.File
	spool    *os.File
	size     int64 // of the spool
	consumed int64
	ended    bool
	noSplice bool
}

// Create makes FIFOs and spools in o.Dir, which must not exist, and opens the log.
func Create(o Options) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o711); err != nil {
		return nil, fmt.Errorf("make stdio: %w", err)
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make stdio: %w", err)
	}
	l, err := create(o)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Dir))
	}
	return l, nil
}

func create(o Options) (*Log, error) {
	for _, name := range o.names() {
		if err := unix.Mkfifo(filepath.Join(o.Dir, name), 0o600); err != nil {
			return nil, fmt.Errorf("make FIFO %s: %w", name, err)
		}
	}
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	for _, s := range l.streams {
		// Until the shim holds its ends, ours keep the readers from seeing an end.
		f, err := os.OpenFile(l.path(s.name), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open FIFO %s: %w", s.name, err), l.Close())
		}
		l.mu.keep = append(l.mu.keep, f)
	}
	return l, nil
}

// Open takes up the stdio that an earlier berth made, and repairs the log as the package
// comment says. ErrNotFound when there is none.
func Open(o Options) (*Log, error) {
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open stdio %s: %w", o.Dir, errdefs.ErrNotFound)
	}
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.recoverLocked(); err != nil {
		return nil, errors.Join(fmt.Errorf("repair log %s: %w", o.Path, err), l.closeFiles())
	}
	return l, nil
}

func (o *Options) names() []string {
	var names []string
	if o.Stdin {
		names = append(names, "stdin")
	}
	if o.Stdout {
		names = append(names, "stdout")
	}
	if o.Stderr {
		names = append(names, "stderr")
	}
	return names
}

func open(o Options) (*Log, error) {
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{o: o, drained: make(chan struct{}), closing: make(chan struct{})}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	return l, nil
}

func (l *Log) open() (err error) {
	if l.o.Stdin {
		if l.stdin, err = os.OpenFile(l.path("stdin"), os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return fmt.Errorf("open FIFO stdin: %w", err)
		}
	}
	for i, name := range []string{"stdout", "stderr"} {
		if i == 0 && !l.o.Stdout || i == 1 && !l.o.Stderr {
			continue
		}
		s := &stream{name: name, index: i}
		l.streams = append(l.streams, s)
		if s.fifo, err = os.OpenFile(l.path(name), os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
			return fmt.Errorf("open FIFO %s: %w", name, err)
		}
		if s.spool, err = os.OpenFile(l.path(name+".spool"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return fmt.Errorf("open spool: %w", err)
		}
	}
	if l.mu.cursor, err = os.OpenFile(l.path("cursor"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open cursor: %w", err)
	}
	return l.openLogLocked()
}

// openLogLocked opens the file at Path for appending.
func (l *Log) openLogLocked() error {
	if l.o.Path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.o.Path), 0o755); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	f, err := os.OpenFile(l.o.Path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("open log %s: it is a symbolic link: %w", l.o.Path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(fmt.Errorf("open log %s: it is no regular file: %w", l.o.Path, errdefs.ErrInvalidArgument), f.Close())
	}
	if l.mu.out != nil {
		_ = l.mu.out.Close()
	}
	l.mu.out, l.mu.inode, l.mu.length = f, st.Ino, st.Size
	return nil
}

func (l *Log) path(name string) string { return filepath.Join(l.o.Dir, name) }

// FIFOs are the paths for the shim; "" for a stream that there is not.
func (l *Log) FIFOs() (stdin, stdout, stderr string) {
	for _, name := range l.o.names() {
		switch name {
		case "stdin":
			stdin = l.path(name)
		case "stdout":
			stdout = l.path(name)
		case "stderr":
			stderr = l.path(name)
		}
	}
	return
}

// Started says that the shim holds its ends of the FIFOs (or never will): from now on a FIFO without
// writers has ended.
func (l *Log) Started() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.mu.keep {
		_ = f.Close()
	}
	l.mu.keep = nil
}

// Drained is closed when every stream has ended and all of it is in the log.
func (l *Log) Drained() <-chan struct{} { return l.drained }

// Run pumps until all streams have ended, ctx ends, or Close. It returns nil then. Call it once.
func (l *Log) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, len(l.streams))
	for i, s := range l.streams {
		wg.Go(func() { errs[i] = l.pump(s) })
	}
	wg.Wait()
	if l.closed() {
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = l.closeFiles()
	}
	ended := true
	for _, s := range l.streams {
		ended = ended && s.ended
	}
	if ended {
		close(l.drained)
	}
	return errors.Join(errs...)
}

// pump copies one stream. It holds the log lock only within a round: parked, it holds nothing.
func (l *Log) pump(s *stream) error {
	raw, err := s.fifo.SyscallConn()
	if err != nil {
		return fmt.Errorf("pump %s: %w", s.name, err)
	}
	for {
		var moved int64
		var rerr error
		werr := raw.Read(func(fd uintptr) bool {
			moved, rerr = l.round(s, int(fd))
			return !errors.Is(rerr, unix.EAGAIN)
		})
		switch {
		case l.closed():
			return nil
		case errors.Is(werr, os.ErrDeadlineExceeded):
			if err := l.tail(s); err != nil {
				return fmt.Errorf("pump %s: %w", s.name, err)
			}
		case werr != nil:
			return fmt.Errorf("pump %s: %w", s.name, werr)
		case rerr != nil:
			return fmt.Errorf("pump %s: %w", s.name, rerr)
		case moved == 0:
			return l.end(s)
		}
	}
}

// chunk is how much one round moves at most.
const chunk = 256 << 10

func (l *Log) round(s *stream, fd int) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed() {
		return 0, os.ErrClosed
	}
	n, err := s.take(fd)
	if err != nil || n == 0 {
		return n, err
	}
	l.mu.stats.Bytes += n
	return n, l.formatLocked(s, false)
}

// take moves bytes from the pipe to the end of the spool. What splice did is seen in the spool's size,
// even by a berth that was killed before this returns.
func (s *stream) take(fd int) (int64, error) {
	if !s.noSplice {
		off := s.size
		n, err := unix.Splice(fd, nil, int(s.spool.Fd()), &off, chunk, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if !errors.Is(err, unix.EINVAL) {
			if err == nil {
				s.size += n
			}
			return n, err
		}
		s.noSplice = true // a file system without splice: a kill within the next two calls can lose a round
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

// tail writes an unfinished line: Flush asked for it.
func (l *Log) tail(s *stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed() {
		return nil
	}
	if err := s.fifo.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if err := l.formatLocked(s, true); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// end writes what is left of an ended stream.
func (l *Log) end(s *stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.formatLocked(s, true); err != nil {
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		return err
	}
	s.ended = true
	return nil
}

func (l *Log) closed() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// Flush returns when what is in the FIFOs now is in the log, an unfinished line included, or with ctx's error. It is for
// when the container has ended and somebody else holds its output open.
func (l *Log) Flush(ctx context.Context) error {
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for {
		if l.empty() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("flush log: %w", ctx.Err())
		case <-l.drained:
			return nil
		case <-t.C:
		}
	}
}

// empty reports whether neither FIFOs nor spools hold anything and no round is at work.
func (l *Log) empty() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	for _, s := range l.streams {
		if s.ended || l.closed() {
			continue
		}
		if s.waiting() > 0 {
			return false
		}
		if s.size > s.consumed {
			_ = s.fifo.SetReadDeadline(time.Unix(1, 0)) // wakes its pump, which writes the rest
			return false
		}
	}
	return true
}

// waiting is how many bytes are in the pipe.
func (s *stream) waiting() (n int) {
	raw, err := s.fifo.SyscallConn() // not Fd, which would make it blocking
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

// Reopen starts a new file at Path, after the old one was moved away. No line is torn.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed() {
		return fmt.Errorf("reopen log %s: %w: its container has ended", l.o.Path, errdefs.ErrFailedPrecondition)
	}
	if err := l.openLogLocked(); err != nil {
		return fmt.Errorf("reopen: %w", err)
	}
	return l.saveLocked()
}

// Stats is what was done so far.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.stats
}

// Close stops the pump and closes everything. Files stay, for Open. It does not wait for a
// write that hangs.
func (l *Log) Close() error {
	l.once.Do(func() {
		close(l.closing)
		for _, s := range l.streams {
			_ = s.fifo.SetReadDeadline(time.Unix(1, 0)) // wakes a parked pump
			_ = s.fifo.Close()
		}
		if l.mu.TryLock() { // else a round is at work, or a write hangs: Run closes when it returns
			defer l.mu.Unlock()
			_ = l.closeFiles()
		}
	})
	return nil
}

// closeFiles needs the log lock, or a Log that nobody else has.
func (l *Log) closeFiles() error {
	files := append([]*os.File{l.stdin, l.mu.out, l.mu.cursor}, l.mu.keep...)
	for _, s := range l.streams {
		files = append(files, s.spool, s.fifo)
	}
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
	return nil
}

// Remove closes and removes FIFOs and spools; the log stays. It is idempotent.
func (l *Log) Remove() error {
	_ = l.Close()
	if err := os.RemoveAll(l.o.Dir); err != nil {
		return fmt.Errorf("remove stdio: %w", err)
	}
	return nil
}
