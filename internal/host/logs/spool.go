// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The spool grows at its end and gives back its pages at its beginning. It is emptied completely if
// possible once it is larger than these: the limit of a file, and the limit on a file system that
// cannot make holes.
const (
	spoolSize        = 1 << 30
	spoolSizeNoPunch = 4 << 20
)

// page is the granularity of holes.
const page = 4096

// cursor is written in one call: see the package comment.
type cursor struct {
	Inode    uint64
	Length   int64
	Consumed [2]int64 // -1: all of the spool is, and it is being emptied
	Ended    [2]bool
}

// cursorSize is the length of an encoded cursor; cursorBefore is the length without Ended.
const (
	cursorSize   = 34
	cursorBefore = 32
)

// writer brings the spools of a container into its log, and records in the cursor how far it is:
// steps 2 to 4 of the package comment. Whenever a method returns, the cursor on the disk is true,
// or the log is cut back to it before anything else is written. All methods need the turn.
type writer struct {
	o       *Options
	disk    disk
	streams []*stream // their spools
	cursor  *os.File
	lines   atomic.Int64

	file   file // nil: not open yet
	inode  uint64
	length int64 // of the log, as far as it is whole
	// torn is set if a write ended half-way, so that the log may be longer than length.
	torn bool
	// noted is when a change by others to the log was last reported.
	noted time.Time
	// known is the cursor of an earlier berth, until the log is open.
	known *cursor
	// dirty is set while the cursor on disk differs from the one in memory.
	dirty bool
}

// save writes the cursor.
func (w *writer) save() error {
	c := cursor{Inode: w.inode, Length: w.length}
	if w.known != nil { // the log is not open yet
		c.Inode, c.Length = w.known.Inode, w.known.Length
	}
	for _, s := range w.streams {
		c.Consumed[s.index], c.Ended[s.index] = s.consumed, s.ended
		if s.resetting {
			c.Consumed[s.index] = -1
		}
	}
	var b [cursorSize]byte
	if _, err := binary.Encode(b[:], binary.LittleEndian, c); err != nil {
		return fmt.Errorf("save log cursor: %w", err)
	}
	w.dirty = true
	if _, err := w.cursor.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("save log cursor: %w", err)
	}
	w.dirty = false
	return nil
}

// restore brings spools and cursor together after the death of a berth. The log follows when it is
// opened.
func (w *writer) restore() error {
	var c cursor
	b := make([]byte, cursorSize)
	n, err := w.cursor.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read log cursor: %w", err)
	}
	known := n >= cursorBefore
	if known {
		if _, err := binary.Decode(b, binary.LittleEndian, &c); err != nil {
			return fmt.Errorf("read log cursor: %w", err)
		}
		w.known = &c
	}
	for _, s := range w.streams {
		st, err := s.spool.Stat()
		if err != nil {
			return fmt.Errorf("open spool: %w", err)
		}
		s.size, s.inherited = st.Size(), true
		switch at := c.Consumed[s.index]; {
		case at < 0:
			s.resetting = true
		case at <= s.size:
			s.consumed = at
		}
		s.ended = c.Ended[s.index]
	}
	w.dirty = true
	return nil
}

// buffers hold text read from a spool, and the lines made from it.
var buffers = sync.Pool{New: func() any { return new([2][]byte) }}

// append makes one attempt to bring the lines of a spool into the log: see [Log.append].
func (w *writer) append(s *stream, last bool) error {
	if err := w.open(); err != nil {
		return err
	}
	if w.dirty {
		if err := w.save(); err != nil {
			return err
		}
	}
	if s.resetting {
		if err := w.reset(s); err != nil {
			return err
		}
	}
	b := buffers.Get().(*[2][]byte) // nothing else is put there
	defer buffers.Put(b)
	last = last || s.size > s.most() // an unfinished line must not keep the spool from being emptied
	for s.consumed < s.size {
		used, err := w.appendPiece(s, last, b)
		if err != nil {
			return err
		}
		if used == 0 {
			break
		}
	}
	return w.tidy(s)
}

// appendPiece brings a part of the spool into the log and returns its length.
func (w *writer) appendPiece(s *stream, last bool, b *[2][]byte) (int, error) {
	n := min(s.size-s.consumed, int64(chunk+w.o.MaxLine+1))
	if int64(cap(b[0])) < n {
		b[0] = make([]byte, n)
	}
	text := b[0][:n]
	if _, err := s.spool.ReadAt(text, s.consumed); err != nil {
		return 0, fmt.Errorf("read spool: %w", err)
	}
	lines, used, count := format(b[1][:0], text, s.name, w.o.MaxLine, last && s.consumed+n == s.size, time.Now())
	b[1] = lines
	if used == 0 {
		return 0, nil
	}
	if err := w.write(lines); err != nil {
		return 0, err
	}
	w.lines.Add(int64(count))
	s.consumed += int64(used)
	return used, w.save()
}

// most returns how long the spool may be.
func (s *stream) most() int64 {
	if s.noPunch {
		return spoolSizeNoPunch
	}
	return spoolSize
}

// tidy gives back the pages of the spool that are not needed any more.
func (w *writer) tidy(s *stream) error {
	empty := s.consumed == s.size
	if empty && s.size > s.most() {
		return w.reset(s)
	}
	end := s.consumed &^ (page - 1)
	if s.noPunch || end <= s.punched || !empty && end-s.punched < 64<<10 {
		return nil
	}
	err := unix.Fallocate(int(s.spool.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, s.punched, end-s.punched)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		s.noPunch = true
		return nil
	}
	if errors.Is(err, unix.EINTR) {
		return nil // the next round does it
	}
	if err != nil {
		return fmt.Errorf("give back pages of the spool: %w", err)
	}
	s.punched = end
	return nil
}

// reset empties the spool, all of which is in the log. The cursor announces that first and is
// corrected afterwards: if berth is killed after any of the three steps, the next berth finishes
// them.
func (w *writer) reset(s *stream) error {
	s.resetting = true
	if err := w.save(); err != nil {
		return err
	}
	if err := s.spool.Truncate(0); err != nil {
		return fmt.Errorf("empty spool: %w", err)
	}
	s.size, s.consumed, s.punched, s.resetting = 0, 0, 0, false
	return w.save()
}
