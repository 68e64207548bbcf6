// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Pipes are the FIFOs of a container that another runtime has made; "" for one that there is not.
type Pipes struct {
	Stdin, Stdout, Stderr string
}

// Adopt makes o.Dir for a container whose shim copies its output into FIFOs that another runtime
// has made, so that Open goes on where that runtime has stopped. No other process may write to the
// log any more. The last line of the log is ended if it is torn, and line, unless it is empty, is
// written after it. It is idempotent: after an interruption it can be called again, and finished
// steps stay as they are.
//
// It returns fs.ErrNotExist if a FIFO is absent, because then there is nothing to take over. It
// returns [ErrLog] if everything was done except for the log, because the log is refused or cannot
// be written: the output then waits.
func Adopt(o Options, from Pipes, line string) error {
	if st, err := os.Stat(o.in("cursor")); err == nil && st.Size() == cursorSize {
		return nil
	}
	if err := adoptDir(o, from); err != nil {
		return fmt.Errorf("adopt stdio: %w", err)
	}
	w := newLog(o, host{}).out
	refused := w.goOn(line)
	if err := w.begin(); err != nil {
		return err
	}
	if refused != nil {
		return fmt.Errorf("%w %s: %w", ErrLog, filepath.Join(o.LogDirectory, o.LogPath), refused)
	}
	return nil
}

// Settle writes output that an earlier Run took from the pipes, an unfinished line included, into
// the log. It then writes line, unless line is empty or already the last one. It takes nothing more
// from the pipes. Call it before [RemoveAll] if another runtime takes over the pipes; no other
// process has the stdio open then. It returns ErrNotFound as Open does. If the log cannot be
// written, it retries until ctx ends.
func Settle(ctx context.Context, o Options, line string) error {
	l, err := Open(o)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if !l.enter() {
		return ctx.Err()
	}
	defer l.leave()
	for _, s := range l.streams {
		if !l.append(s, true) {
			return fmt.Errorf("settle log %s: %w", o.LogPath, cmp.Or(l.Stats().LastErr, ctx.Err()))
		}
	}
	if line == "" {
		return nil
	}
	if err := l.out.goOn(line); err != nil {
		return fmt.Errorf("settle log %s: %w", o.LogPath, err)
	}
	return l.out.save()
}

// ErrLog is about the log of a container whose stdio was adopted.
var ErrLog = errors.New("adopt log")

// goOn finds the end of the log, ends its last line, and writes another after it.
func (w *writer) goOn(line string) error {
	if w.o.LogPath == "" {
		return nil
	}
	f, inode, size, err := w.disk.open(w.o.LogDirectory, w.o.LogPath)
	if err != nil {
		return err
	}
	defer f.Close()
	if size, err = finish(f, size, line); err != nil {
		return err
	}
	w.inode, w.length = inode, size
	return nil
}

// adoptDir makes the directory, with a link in the place of each FIFO.
func adoptDir(o Options, from Pipes) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	for name, fifo := range map[string]string{"stdin": from.Stdin, "stdout": from.Stdout, "stderr": from.Stderr} {
		if fifo == "" {
			continue
		}
		st, err := os.Lstat(fifo)
		if err == nil && st.Mode().Type() != fs.ModeNamedPipe {
			err = fmt.Errorf("%s is not a FIFO", fifo)
		}
		if err == nil {
			if err = os.Symlink(fifo, o.in(name)); errors.Is(err, fs.ErrExist) {
				err = nil // by an attempt that was cut off
			}
		}
		if err != nil {
			return errors.Join(err, os.RemoveAll(o.Dir))
		}
	}
	return nil
}

// begin writes the first cursor, which marks the directory as complete.
func (w *writer) begin() error {
	var err error
	if w.cursor, err = os.OpenFile(w.o.in("cursor"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("adopt stdio: %w", err)
	}
	return errors.Join(w.save(), w.cursor.Close())
}

// tail is how much of the end of a log is looked at for the line that Adopt writes.
const tail = 4096

// finish ends a torn last line of a log, and writes line after it unless it is already the last
// one. It returns the new size.
func finish(f file, size int64, line string) (int64, error) {
	r, ok := f.(io.ReaderAt)
	if !ok {
		return size, errors.New("it cannot be read")
	}
	end := make([]byte, min(size, tail))
	if _, err := r.ReadAt(end, size-int64(len(end))); err != nil && !errors.Is(err, io.EOF) {
		return size, err
	}
	var add []byte
	if len(end) > 0 && end[len(end)-1] != '\n' {
		add = append(add, '\n')
	}
	if line != "" && !bytes.HasSuffix(end, []byte(" F "+line+"\n")) {
		add, _, _ = format(add, []byte(line+"\n"), "stdout", len(line), false, time.Now())
	}
	if len(add) == 0 {
		return size, nil
	}
	if _, err := f.WriteAt(add, size); err != nil {
		return size, err
	}
	return size + int64(len(add)), nil
}

// Held are the FIFOs of a container that [HoldPipes] has opened; nil for one that there is not.
type Held struct {
	stdin, stdout, stderr *os.File
	rest                  []byte // lines that could not be written
}

// HoldPipes opens the FIFOs of a container, so that their content is not dropped, and its stdin
// does not end, while no other process has them open. Nothing is read. The caller closes the result
// once another process has opened the FIFOs.
func HoldPipes(p Pipes) (*Held, error) {
	h := &Held{}
	for _, pipe := range []struct {
		file **os.File
		path string
		mode int // a writer of the output would keep its reader from seeing an end
	}{{&h.stdin, p.Stdin, os.O_RDWR}, {&h.stdout, p.Stdout, os.O_RDONLY}, {&h.stderr, p.Stderr, os.O_RDONLY}} {
		if pipe.path == "" {
			continue
		}
		f, err := os.OpenFile(pipe.path, pipe.mode|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the container has ended
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("hold %s: %w", pipe.path, err), h.Close())
		}
		*pipe.file = f
	}
	return h, nil
}

// WriteRest appends the content of an ended container's FIFOs to its log. Call it once no other
// process writes to the log or reads the FIFOs any more. Output that was read but could not be
// written is kept for the next call: see [Held.Unwritten].
func (h *Held) WriteRest(o Options) error { return h.writeRest(o, host{}) }

// Unwritten is how many bytes of lines WriteRest has made of the output and could not write.
func (h *Held) Unwritten() int { return len(h.rest) }

func (h *Held) writeRest(o Options, d disk) error {
	var unread error
	if len(h.rest) == 0 { // the kept output is at most the capacity of the pipes
		unread = h.gather(o)
	}
	if o.LogPath == "" {
		h.rest = nil
	}
	if len(h.rest) == 0 {
		return unread
	}
	f, _, size, err := d.open(o.LogDirectory, o.LogPath)
	if err != nil {
		return errors.Join(unread, fmt.Errorf("write the rest of the output: %w", err))
	}
	n, err := f.WriteAt(h.rest, size)
	if err == nil || f.Truncate(size) != nil { // the next call goes on after a part that stays
		h.rest = h.rest[n:]
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = fmt.Errorf("write the rest of the output: %w", err)
	}
	return errors.Join(unread, err)
}

// gather formats the content of the FIFOs into log lines.
func (h *Held) gather(o Options) error {
	var errs []error
	for _, pipe := range []struct {
		file   *os.File
		stream string
	}{{h.stdout, "stdout"}, {h.stderr, "stderr"}} {
		text, err := left(pipe.file)
		if err != nil {
			errs = append(errs, fmt.Errorf("read the rest of the output: %w", err))
		}
		h.rest, _, _ = format(h.rest, text, pipe.stream, cmp.Or(max(o.MaxLine, 0), DefaultMaxLine), true, time.Now())
	}
	return errors.Join(errs...)
}

// left reads the current content of a pipe without waiting, because a process that outlived the
// container may write on. f may be nil.
func left(f *os.File) (text []byte, err error) {
	if f == nil {
		return nil, nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var rerr error
	err = raw.Control(func(fd uintptr) { text, rerr = readNow(int(fd)) })
	return text, errors.Join(err, rerr)
}

func readNow(fd int) (text []byte, err error) {
	size, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	for len(text) < size {
		n, err := unix.Read(fd, b[len(text):])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), err == nil && n <= 0:
			return text, nil
		case err != nil:
			return text, err
		default:
			text = b[:len(text)+n]
		}
	}
	return text, nil
}

// Close closes the FIFOs. The kernel drops the content of those that no other process has open.
func (h *Held) Close() error {
	var errs []error
	for _, f := range []*os.File{h.stdin, h.stdout, h.stderr} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
