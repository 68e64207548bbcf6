// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/event"
)

// disk is where logs lie. Any call may hang for ever.
type disk interface {
	// open opens or creates the log at path below dir, and returns its inode and size.
	open(dir, path string) (f file, inode uint64, size int64, err error)
}

// file is an open log. A write names its place: one that hung, on a disk that did not answer, and
// is carried out after its berth has gone, writes the lines that the next berth has written there.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// look returns the size of the file, and whether it still has a name.
	look() (size int64, named bool, err error)
}

// open opens the log if it is not open, and cuts off lines whose write an earlier berth did not
// live to record.
func (w *writer) open() error {
	if w.o.LogPath == "" {
		w.known = nil
		return nil
	}
	if w.file != nil {
		return nil
	}
	f, inode, size, err := w.disk.open(w.o.LogDirectory, w.o.LogPath)
	if err != nil {
		return fmt.Errorf("open log %s: %w", filepath.Join(w.o.LogDirectory, w.o.LogPath), err)
	}
	if c := w.known; c != nil && c.Inode == inode && c.Length < size {
		if err := f.Truncate(c.Length); err != nil {
			return errors.Join(fmt.Errorf("repair log: %w", err), f.Close())
		}
		size = c.Length
	}
	w.use(f, inode, size)
	return w.save()
}

// reopen replaces the open log by the file that is at its path now.
func (w *writer) reopen() error {
	if w.file == nil || w.o.LogPath == "" {
		return w.open()
	}
	if err := w.cut(); err != nil {
		return err
	}
	return w.openAnew()
}

// openAnew is reopen for a log of which nothing needs to be cut off.
func (w *writer) openAnew() error {
	f, inode, size, err := w.disk.open(w.o.LogDirectory, w.o.LogPath)
	if err != nil {
		return fmt.Errorf("open log %s: %w", filepath.Join(w.o.LogDirectory, w.o.LogPath), err)
	}
	_ = w.file.Close()
	w.use(f, inode, size)
	return w.save()
}

func (w *writer) use(f file, inode uint64, size int64) {
	w.file, w.inode, w.length = f, inode, size
	w.known, w.torn, w.dirty = nil, false, true
}

// write puts lines at the end of the log, whole or not at all.
func (w *writer) write(lines []byte) error {
	if w.file == nil {
		return nil
	}
	if err := w.detectChanges(); err != nil {
		return err
	}
	if err := w.put(lines); err != nil {
		return err
	}
	if was := w.length - int64(len(lines)); w.followsHole(was) {
		w.note(event.LogTruncated{From: was})
		w.length = 0
		if err := w.file.Truncate(0); err != nil {
			return err
		}
		return w.put(lines)
	}
	return nil
}

// put writes lines at the length that the log is known to have.
func (w *writer) put(lines []byte) error {
	if _, err := w.file.WriteAt(lines, w.length); err != nil {
		w.torn = true
		return errors.Join(err, w.cut())
	}
	w.length += int64(len(lines))
	return nil
}

// followsHole reports whether the bytes before offset at are a hole because the log was truncated
// between reading its length and the write. A line in that place would end before the offset, and
// not with a zero.
func (w *writer) followsHole(at int64) bool {
	var b [1]byte
	if at == 0 {
		return false
	}
	n, err := w.file.ReadAt(b[:], at-1)
	return n == 1 && err == nil && b[0] == 0
}

// detectChanges detects changes that others made to the log since berth last wrote to it. It
// updates the cursor before anything is written, because after a kill the next berth cuts the log
// back to the length in the cursor.
//
// Others truncate a log (logrotate's copytruncate), and a write at the length that it had makes a
// hole, which readers of the log read as NULs. Others also delete a log, or its directory, while
// berth goes on writing to a file that no reader can open any more.
//
// If the log is longer than berth wrote, do not continue at its new end: the surplus may be the
// write of an earlier berth, which hung and was carried out late.
func (w *writer) detectChanges() error {
	if err := w.cut(); err != nil {
		return err
	}
	size, named, err := w.file.look()
	switch {
	case err != nil:
		return err
	case !named:
		if err := w.openAnew(); err != nil {
			return err
		}
		w.note(event.LogDeleted{})
	case size < w.length:
		w.note(event.LogTruncated{From: w.length, To: size})
		w.length, w.dirty = size, true
		return w.save()
	}
	return nil
}

// noteInterval is the least time between two reports of changes that others made to a log.
const noteInterval = time.Minute

// note reports a change that another program made to the log, at most once in noteInterval. The
// limit keeps a pod that may write to its log from deciding how much berth reports.
func (w *writer) note(e event.Event) {
	if now := time.Now(); w.noted.IsZero() || now.Sub(w.noted) >= noteInterval {
		w.noted = now
		w.o.Note(e)
	}
}

// cut removes the remains of a write that failed half-way.
func (w *writer) cut() error {
	if !w.torn {
		return nil
	}
	size, _, err := w.file.look()
	if err == nil && size > w.length { // it is shorter if another program has truncated it
		err = w.file.Truncate(w.length)
	}
	if err != nil {
		return err
	}
	w.torn = false
	return nil
}

// host is the disk of this host.
type host struct{}

// beneath resolves paths that a pod may have manipulated: none leads out of the directory.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

func (host) open(dir, path string) (file, uint64, int64, error) {
	if !filepath.IsAbs(dir) || !filepath.IsLocal(path) {
		return nil, 0, 0, fmt.Errorf("it is not below the pod's log directory: %w", errdefs.ErrInvalidArgument)
	}
	// The parent directory, such as /var/log/pods, belongs to the administrator, and its path may lead
	// through links. The directory itself is made for one pod, and a pod that writes to /var/log/pods,
	// as collectors of logs do, could put a link in its place: that one is not followed.
	parent, name := filepath.Split(filepath.Clean(dir))
	if name == "" {
		return nil, 0, 0, fmt.Errorf("%s is not a directory for logs of a pod: %w", dir, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, 0, 0, refusal(dir, err)
	}
	at, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, 0, refusal(dir, err)
	}
	defer func() { _ = unix.Close(at) }()
	parts := append([]string{name}, strings.Split(filepath.Clean(path), "/")...)
	for _, name := range parts[:len(parts)-1] {
		if err := unix.Mkdirat(at, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, 0, 0, err
		}
		next, err := openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, 0, 0, refusal(name, err)
		}
		_ = unix.Close(at)
		at = next
	}
	return openFile(at, parts[len(parts)-1])
}

// logFile is a log on this host.
type logFile struct{ *os.File }

func (f logFile) look() (size int64, named bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var st unix.Stat_t
	cerr := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	return st.Size, st.Nlink > 0, errors.Join(cerr, err)
}

// openFile opens the log itself. An existing file is checked before it is opened, because opening a
// device may have effects, and a hard link may be another user's file.
func openFile(at int, name string) (file, uint64, int64, error) {
	for {
		fd, err := openat(at, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o640)
		if errors.Is(err, unix.EEXIST) {
			if fd, err = reopen(at, name); errors.Is(err, unix.ENOENT) {
				continue // it was moved away meanwhile
			}
		}
		if err != nil {
			return nil, 0, 0, refusal(name, err)
		}
		f := os.NewFile(uintptr(fd), name)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, 0, 0, errors.Join(err, f.Close())
		}
		return logFile{f}, st.Ino, st.Size, nil
	}
}

// reopen opens a file that is there, if it is one that berth may have made.
func reopen(at int, name string) (int, error) {
	fd, err := openat(at, name, unix.O_PATH, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, fmt.Errorf("it is not a regular file; remove it: %w", errdefs.ErrInvalidArgument)
	}
	if st.Nlink > 1 {
		return -1, fmt.Errorf("it is a hard link to another file; remove it: %w", errdefs.ErrInvalidArgument)
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

func openat(at int, name string, flags, mode int) (int, error) {
	for {
		fd, err := unix.Openat2(at, name, &unix.OpenHow{
			Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
			Mode:    uint64(mode),
			Resolve: beneath,
		})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// refusal explains why the kernel did not follow a path.
func refusal(name string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s is a symbolic link; remove it: %w", name, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is a link, or not a directory; remove it: %w", name, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%s leads elsewhere: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	return err
}
