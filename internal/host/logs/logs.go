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

	"berth/internal/base/event"
)

// DefaultMaxLine is how many bytes of a line go into one log line if Options.MaxLine is 0.
const DefaultMaxLine = 16 << 10

// Time limits for calls that may never return.
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
	// LogDirectory is the directory of the pod's logs, as the kubelet gives it: an absolute path that
	// may lead through symbolic links, and must not be one itself. LogPath is the container's log
	// below it; nothing below LogDirectory is trusted. With an empty LogPath the output is discarded.
	LogDirectory, LogPath string
	Stdin                 bool
	// StdinOnce makes stdin end when its first client closes it: see Attachment.CloseStdin.
	StdinOnce bool
	Stdout    bool
	Stderr    bool
	// Terminal is set if the container has a terminal; the shim then copies its output.
	Terminal bool
	// LoggerProgram is the path of berth-logger for a runtime whose shim starts it: the output then
	// comes through its pipes. Empty for FIFOs. Open needs it to replace a logger that was killed.
	LoggerProgram string
	// Pipe opens the read end of the pipe with an inode, which the container or its shim has open to
	// write. It is asked where the logger has gone while berth was away. It may be nil.
	Pipe func(inode uint64) (fd int, err error)
	// AnyUser lets every user of the container open its output by name, as /dev/stdout: in a user
	// namespace the OCI runtime cannot give the pipes of the logger to the container's user.
	AnyUser bool
	// MaxLine is in bytes; 0 for DefaultMaxLine. Longer lines are split.
	MaxLine int
	// Note is called for each event of this container's output. It must not block. It may be nil.
	Note func(e event.Event)
}

// Log is one container's stdio. Its methods may be called from any goroutine.
type Log struct {
	o       Options
	direct  bool // the output comes from a logger's pipes, not from FIFOs
	streams []*stream
	out     *writer // needs the turn
	keeper  keeper
	stdin   stdin
	tees    tees

	gatherTime time.Duration // see the constant of this name

	started chan struct{} // closed by Started
	once    sync.Once     // of Started
	drained chan struct{} // see Drained
	closing chan struct{} // closed by Close

	// turn is held for all work on the log file and the cursor. A hung log disk may keep its holder
	// for ever, so all others wait for it with a bound.
	turn chan struct{}

	mu struct {
		sync.Mutex
		users  int // goroutines that may use the files
		closed bool
		done   bool       // the files are closed
		keep   []*os.File // our own ends of the FIFOs, until Started
	}
	bytes atomic.Int64
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
	var fifos []string
	if o.Stdin {
		fifos = append(fifos, "stdin")
	}
	for _, s := range l.streams {
		if !l.direct {
			fifos = append(fifos, s.name)
		}
	}
	for _, name := range fifos {
		if err := unix.Mkfifo(l.o.in(name), 0o600); err != nil {
			return nil, fmt.Errorf("make FIFO %s: %w", name, err)
		}
	}
	if err := l.openFiles(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// The whole cursor is written now, so that no later write of it needs room on the disk.
	if err := l.out.save(); err != nil {
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
	if err := l.withTurn(ctx, l.out.open); errors.Is(err, errdefs.ErrInvalidArgument) {
		return err
	}
	return nil // the pump retries, and reports the error
}

// Open takes up the stdio that an earlier berth made. It touches only o.Dir and does not wait: Run
// repairs the log and writes the rest of the spools. It returns ErrNotFound if the stdio is absent
// or incomplete, because its creation or its removal was cut off.
func Open(o Options) (*Log, error) { return openOn(o, host{}) }

func openOn(o Options, d disk) (*Log, error) {
	if _, err := os.Stat(o.in("cursor")); errors.Is(err, fs.ErrNotExist) {
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
	if err := l.out.restore(); err != nil {
		return nil, errors.Join(fmt.Errorf("open stdio %s: %w", o.Dir, err), l.Close())
	}
	return l, nil
}

func newLog(o Options, d disk) *Log {
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	if o.Note == nil {
		o.Note = func(event.Event) {}
	}
	l := &Log{
		o: o,

		gatherTime: gatherTime,
		started:    make(chan struct{}),
		drained:    make(chan struct{}),
		closing:    make(chan struct{}),
		turn:       make(chan struct{}, 1),
	}
	for i, name := range []string{"stdout", "stderr"} {
		if i == 0 && o.Stdout || i == 1 && o.Stderr {
			l.streams = append(l.streams, newStream(name, i))
		}
	}
	l.out = &writer{o: &l.o, disk: d, streams: l.streams}
	l.stdin.o = &l.o
	l.keeper = keeper{o: &l.o, streams: l.streams, closing: l.closing}
	return l
}

// openFiles opens the files in Dir.
func (l *Log) openFiles() (err error) {
	if err := l.stdin.open(); err != nil {
		return err
	}
	for _, s := range l.streams {
		if s.spool, err = os.OpenFile(l.o.in(s.name+".spool"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return fmt.Errorf("open spool: %w", err)
		}
		if l.direct {
			continue
		}
		fd, err := unix.Open(l.o.in(s.name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			err = s.attach(fd)
		}
		if err != nil {
			return fmt.Errorf("open FIFO %s: %w", s.name, err)
		}
	}
	if l.out.cursor, err = os.OpenFile(l.o.in("cursor"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open cursor: %w", err)
	}
	return nil
}

// in returns the path of something in Dir.
func (o Options) in(name string) string { return filepath.Join(o.Dir, name) }
