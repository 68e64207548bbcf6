// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// DefaultMaxLine is how many bytes of a line go into one log line when Options do not say.
const DefaultMaxLine = 16 << 10

// How long this package waits for what may never come.
const (
	openTimeout   = 2 * time.Second        // Create, for the log's disk
	reopenTimeout = 10 * time.Second       // Reopen, for the same, if its context is more patient
	leaveTimeout  = 250 * time.Millisecond // Run, after Close, for a system call in flight
	silentTimeout = 5 * time.Second        // until a disk that does not answer is reported
)

// Options describe a container's stdio.
type Options struct {
	// Dir is for the FIFOs, the socket and the spools. It belongs to this package alone.
	Dir string
	// LogDirectory is the directory of the pod's logs, as the kubelet gives it: an absolute path
	// that may lead through symbolic links. LogPath is the container's log below it; nothing
	// below LogDirectory is trusted. With an empty LogPath the output is discarded.
	LogDirectory, LogPath string
	Stdin                 bool
	// StdinOnce says that stdin ends when its first client has: see Attachment.CloseStdin.
	StdinOnce bool
	Stdout    bool
	Stderr    bool
	// Terminal says that the container has a terminal, so that the shim copies its output.
	Terminal bool
	// LoggerProgram is the path of berth-logger for a runtime whose shim starts it: the output
	// then comes through its pipes. Empty for FIFOs. It only matters to Create.
	LoggerProgram string
	// AnyUser lets every user of the container open its output by name, as /dev/stdout: in a user
	// namespace the OCI runtime cannot give the pipes of the logger to the container's user.
	AnyUser bool
	// MaxLine is in bytes; 0 for DefaultMaxLine. Longer lines are split.
	MaxLine int
	// Report is called with what a person should know of this container's output. err may be nil.
	// It must not block. It may be nil.
	Report func(what string, err error)
}

// Log is one container's stdio. Its methods may be called from any goroutine.
type Log struct {
	o       Options
	disk    disk // of the log file
	direct  bool // the output comes from a logger's pipes, not from FIFOs
	streams []*stream
	stdin   *os.File // both ends, so that the container's stdin stays open
	over    bool     // see StdinOver
	cursor  *os.File
	tees    tees

	started chan struct{} // closed by Started
	once    sync.Once     // of Started
	drained chan struct{} // see Drained
	closing chan struct{} // closed by Close

	// turn is held for whatever concerns the log file and the cursor. The log's disk may keep its
	// holder for ever, so that everybody else waits for it with a bound.
	turn chan struct{}
	out  struct { // needs the turn
		file   file // nil: not open yet
		inode  uint64
		length int64 // of the log, as far as it is whole
		// torn says that a write ended half-way, and the log may be longer than length.
		torn bool
		// known is the cursor of an earlier berth, until the log is open.
		known *cursor
		// dirty says that the cursor on disk is not the one in memory.
		dirty bool
	}

	mu struct {
		sync.Mutex
		users  int // goroutines that may use the files
		closed bool
		done   bool       // the files are closed
		keep   []*os.File // our own ends of the FIFOs, until Started
		logger int        // the connection to the logger; -1 for none
	}
	bytes, lines atomic.Int64
}

// Stats is for a person.
type Stats struct {
	Bytes, Lines int64
	LastErr      error // of writing the log; nil once it works again
}

// Create makes the stdio in o.Dir, which must not exist, and opens the log. A log that is refused
// (a link, something other than a regular file) is ErrInvalidArgument. A log whose disk is full,
// broken or silent is not an error: the output waits until it can be written.
func Create(o Options) (*Log, error) { return createOn(o, host{}) }

func createOn(o Options, d disk) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o711); err != nil {
		return nil, fmt.Errorf("make stdio: %w", err)
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make stdio: %w", err)
	}
	l, err := create(o, d)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Dir))
	}
	return l, nil
}

func create(o Options, d disk) (*Log, error) {
	l := newLog(o, d)
	l.direct = o.LoggerProgram != ""
	for _, name := range l.fifos() {
		if err := unix.Mkfifo(l.o.in(name), 0o600); err != nil {
			return nil, fmt.Errorf("make FIFO %s: %w", name, err)
		}
	}
	if err := l.openFiles(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// All of the cursor is written now, so that no later write of it needs room on the disk.
	if err := l.save(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	for _, s := range l.streams {
		if l.direct {
			break
		}
		// Until the shim holds its ends, ours keep the readers from seeing an end.
		f, err := os.OpenFile(l.o.in(s.name), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open FIFO %s: %w", s.name, err), l.Close())
		}
		l.mu.keep = append(l.mu.keep, f)
	}
	if err := l.firstOpen(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// firstOpen opens the log so that a path that is refused is known before the container starts.
func (l *Log) firstOpen() error {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	if err := l.withTurn(ctx, l.openLog); errors.Is(err, errdefs.ErrInvalidArgument) {
		return err
	}
	return nil // the pump tries again, and reports what is wrong
}

// Open takes up the stdio that an earlier berth made. It touches nothing but o.Dir, and waits for
// nothing: Run repairs the log and writes what was left in the spools. ErrNotFound when there is
// no stdio.
func Open(o Options) (*Log, error) { return openOn(o, host{}) }

func openOn(o Options, d disk) (*Log, error) {
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open stdio %s: %w", o.Dir, errdefs.ErrNotFound)
	}
	l := newLog(o, d)
	l.once.Do(func() { close(l.started) })
	if len(l.streams) > 0 {
		_, err := os.Lstat(l.o.in(l.streams[0].name))
		l.direct = errors.Is(err, fs.ErrNotExist)
	}
	if err := l.openFiles(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.restore(); err != nil {
		return nil, errors.Join(fmt.Errorf("open stdio %s: %w", o.Dir, err), l.Close())
	}
	return l, nil
}

func newLog(o Options, d disk) *Log {
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	if o.Report == nil {
		o.Report = func(string, error) {}
	}
	l := &Log{
		o:       o,
		disk:    d,
		started: make(chan struct{}),
		drained: make(chan struct{}),
		closing: make(chan struct{}),
		turn:    make(chan struct{}, 1),
	}
	l.mu.logger = -1
	for i, name := range []string{"stdout", "stderr"} {
		if i == 0 && o.Stdout || i == 1 && o.Stderr {
			l.streams = append(l.streams, newStream(name, i))
		}
	}
	return l
}

// openFiles opens what lies in Dir.
func (l *Log) openFiles() (err error) {
	l.over = l.stdinOver()
	if l.o.Stdin && !l.over {
		if l.stdin, err = os.OpenFile(l.o.in("stdin"), os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return fmt.Errorf("open FIFO stdin: %w", err)
		}
	}
	for _, s := range l.streams {
		if s.spool, err = os.OpenFile(l.o.in(s.name+".spool"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return fmt.Errorf("open spool: %w", err)
		}
		if l.direct {
			continue
		}
		f, err := os.OpenFile(l.o.in(s.name), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open FIFO %s: %w", s.name, err)
		}
		s.attach(f)
	}
	if l.cursor, err = os.OpenFile(l.o.in("cursor"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open cursor: %w", err)
	}
	return nil
}

// in is the path of something in Dir.
func (o Options) in(name string) string { return filepath.Join(o.Dir, name) }

// Run moves the output to the log until all streams have ended, ctx ends, or Close. It returns nil
// then. Call it once.
//
// A write that a frozen disk does not answer cannot be taken back: after Close, Run does not wait
// for it. Its goroutine and its descriptors stay until the disk answers.
func (l *Log) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if !l.enter() {
		return nil
	}
	defer l.leave()
	if !l.connect() {
		return nil
	}
	all := make(chan struct{})
	var running atomic.Int32
	running.Store(int32(len(l.streams))) //nolint:gosec // two at most
	for _, s := range l.streams {
		if !l.enter() {
			return nil
		}
		go func() {
			defer l.leave()
			l.pump(s)
			if running.Add(-1) == 0 {
				close(all)
			}
		}()
	}
	if len(l.streams) == 0 {
		close(all)
	}
	select {
	case <-all:
	case <-l.closing:
		t := time.NewTimer(leaveTimeout)
		defer t.Stop()
		select {
		case <-all:
		case <-t.C:
			return nil
		}
	}
	for _, s := range l.streams {
		if !s.ended {
			return nil
		}
	}
	l.dismiss()
	l.tees.end()
	close(l.drained)
	return nil
}

// Drained is closed when every stream has ended and all of it is in the log.
func (l *Log) Drained() <-chan struct{} { return l.drained }

// Drain returns when everything that the container wrote before it ended is in its log, an
// unfinished line included, or with ctx's error. Call it when the container's processes are dead.
// Where berth reads the container's own pipes, that is the moment at which they are empty, whoever
// else holds them open. Where the shim copies, nobody but the shim knows when it has copied all,
// and it says so by closing its end.
func (l *Log) Drain(ctx context.Context) error {
	if l.direct && !l.o.Terminal {
		return l.Flush(ctx)
	}
	select {
	case <-l.drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain log: its output is held open, or the log cannot be written: %w", ctx.Err())
	}
}

// Flush returns when what is in the pipes now is in the log, an unfinished line included, or with
// ctx's error. It is for when somebody holds the container's output open.
func (l *Log) Flush(ctx context.Context) error {
	asked := make([]<-chan struct{}, len(l.streams))
	for i, s := range l.streams {
		asked[i] = s.flush()
	}
	for i, s := range l.streams {
		flushed := asked[i]
		select {
		case <-flushed:
			continue
		case <-s.left:
		case <-ctx.Done():
			return fmt.Errorf("flush log: %w", ctx.Err())
		case <-l.closing:
		}
		select {
		case <-flushed:
		default:
			if !s.over() {
				return fmt.Errorf("flush log: %w", os.ErrClosed)
			}
		}
	}
	return nil
}

// Reopen starts a new file at the log's path, after the old one was moved away. No line is torn.
// When the log's disk does not answer within ctx, or ten seconds, it returns with an error. The
// file may be opened all the same once the disk answers; to ask again is harmless.
func (l *Log) Reopen(ctx context.Context) error {
	if l.isClosed() {
		return fmt.Errorf("reopen log %s: its container has ended: %w", l.o.LogPath, errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithTimeout(ctx, reopenTimeout)
	defer cancel()
	if err := l.withTurn(ctx, l.reopenLog); err != nil {
		return fmt.Errorf("reopen: %w", err)
	}
	return nil
}

// withTurn calls f with the turn, in a goroutine that ctx can leave behind.
func (l *Log) withTurn(ctx context.Context, f func() error) error {
	if err := l.takeTurn(ctx); err != nil {
		return fmt.Errorf("log %s: its disk does not answer: %w", l.o.LogPath, err)
	}
	if !l.enter() {
		<-l.turn
		return os.ErrClosed
	}
	result := make(chan error, 1)
	go func() {
		defer l.leave()
		defer func() { <-l.turn }()
		result <- f()
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("log %s: its disk does not answer: %w", l.o.LogPath, ctx.Err())
	case <-l.closing:
		return os.ErrClosed
	}
}

// takeTurn waits for the turn; whoever holds it may be in the hands of a frozen disk.
func (l *Log) takeTurn(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-l.closing:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats is what was done so far.
func (l *Log) Stats() Stats {
	st := Stats{Bytes: l.bytes.Load(), Lines: l.lines.Load()}
	for _, s := range l.streams {
		if err := s.failure.Load(); err != nil {
			st.LastErr = *err
		}
	}
	return st
}

// fail notes why a stream's output cannot be written, and ok that it can be. Only a change is
// reported.
func (s *stream) fail(report func(string, error), err error) {
	if s.failure.Swap(&err) == nil {
		report(s.name+" cannot be logged, and waits", err)
	}
}

func (s *stream) ok(report func(string, error)) {
	if s.failure.Swap(nil) != nil {
		report(s.name+" can be logged again", nil)
	}
}

// enter says that the caller may use the files until it calls leave; false after Close.
func (l *Log) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return false
	}
	l.mu.users++
	return true
}

func (l *Log) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.users--
	l.closeFilesLocked()
}

func (l *Log) isClosed() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// Close stops Run. What lies in Dir stays, for Open, and so does the output that waits in the
// pipes. It waits for nothing; it always returns nil.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil
	}
	l.mu.closed = true
	close(l.closing)
	l.tees.end()
	for _, s := range l.streams {
		s.detach()
	}
	l.hangUpLocked()
	l.closeFilesLocked()
	return nil
}

// closeFilesLocked closes what is open once nobody can use it any more.
func (l *Log) closeFilesLocked() {
	if !l.mu.closed || l.mu.users > 0 || l.mu.done {
		return
	}
	l.mu.done = true
	files := append([]*os.File{l.stdin, l.cursor}, l.mu.keep...)
	for _, s := range l.streams {
		files = append(files, s.spool)
	}
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
	if l.out.file != nil {
		_ = l.out.file.Close()
	}
}

// Remove closes and removes the stdio, and ends the logger; the log stays. It is idempotent.
func (l *Log) Remove() error {
	_ = l.Close()
	return RemoveAll(l.o.Dir)
}

// RemoveAll removes the stdio in dir, whoever made it, and ends its logger. Nobody may use it any
// more. It is idempotent.
func RemoveAll(dir string) error {
	dismiss(dir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove stdio: %w", err)
	}
	return nil
}
