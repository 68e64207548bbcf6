// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stamp is RFC 3339 with all nine digits, which the kubelet parses as RFC3339Nano.
const stamp = "2006-01-02T15:04:05.000000000Z07:00"

// cursor is what is written in one call: see the package comment.
type cursor struct {
	Inode    uint64
	Length   int64
	Consumed [2]int64
}

// saveLocked writes the cursor.
func (l *Log) saveLocked() error {
	c := cursor{Inode: l.mu.inode, Length: l.mu.length}
	for _, s := range l.streams {
		c.Consumed[s.index] = s.consumed
	}
	var b [32]byte
	if _, err := binary.Encode(b[:], binary.LittleEndian, c); err != nil {
		return err
	}
	if _, err := l.mu.cursor.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("save log cursor: %w", err)
	}
	return nil
}

// recoverLocked brings log, spools and cursor together after a kill.
func (l *Log) recoverLocked() error {
	var c cursor
	var b [32]byte
	n, err := l.mu.cursor.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	known := n == len(b)
	if known {
		if _, err := binary.Decode(b[:], binary.LittleEndian, &c); err != nil {
			return err
		}
	}
	if known && l.mu.out != nil && c.Inode == l.mu.inode && c.Length < l.mu.length {
		if err := l.mu.out.Truncate(c.Length); err != nil {
			return err
		}
		l.mu.length = c.Length
	}
	for _, s := range l.streams {
		st, err := s.spool.Stat()
		if err != nil {
			return err
		}
		s.size, s.consumed = st.Size(), 0
		if known && c.Consumed[s.index] <= s.size {
			s.consumed = c.Consumed[s.index]
		}
	}
	if err := l.saveLocked(); err != nil {
		return err
	}
	for _, s := range l.streams {
		if err := l.formatLocked(s, false); err != nil {
			return err
		}
	}
	return nil
}

// formatLocked writes the whole lines of the spool to the log; with last, what is left, too. The
// cursor is true before and after.
func (l *Log) formatLocked(s *stream, last bool) error {
	if s.size == s.consumed {
		return nil
	}
	text := make([]byte, s.size-s.consumed)
	if _, err := s.spool.ReadAt(text, s.consumed); err != nil {
		return fmt.Errorf("read spool: %w", err)
	}
	lines, used, count := format(text, s.name, l.o.MaxLine, last, time.Now())
	if used == 0 {
		return nil
	}
	if err := l.writeLocked(lines); err != nil {
		return err
	}
	l.mu.stats.Lines += int64(count)
	l.mu.length += int64(len(lines))
	s.consumed += int64(used)
	if err := l.saveLocked(); err != nil {
		return err
	}
	if s.consumed < s.size {
		return nil
	}
	if err := s.spool.Truncate(0); err != nil {
		return fmt.Errorf("empty spool: %w", err)
	}
	s.size, s.consumed = 0, 0
	return l.saveLocked()
}

// format turns text into log lines and says how many of its bytes they hold. An unterminated end is left,
// unless it is longer than limit or last is set: then it is a part (P), for it had no newline.
func format(text []byte, stream string, limit int, last bool, now time.Time) (lines []byte, used, count int) {
	head := now.UTC().AppendFormat(make([]byte, 0, 64), stamp)
	head = append(append(append(head, ' '), stream...), ' ')
	out := make([]byte, 0, len(text)+len(text)/32+256)
	for used < len(text) {
		rest := text[used:]
		n := bytes.IndexByte(rest[:min(len(rest), limit+1)], '\n')
		tag, skip := byte('F'), 1
		if n < 0 {
			switch {
			case len(rest) > limit:
				n = limit
			case last:
				n = len(rest)
			default:
				return out, used, count
			}
			tag, skip = 'P', 0
		}
		out = append(append(append(append(out, head...), tag, ' '), rest[:n]...), '\n')
		used += n + skip
		count++
	}
	return out, used, count
}

// writeLocked puts lines at the end of the log. It does not give up before Close: a full disk holds the
// container's output up, it does not lose it.
func (l *Log) writeLocked(lines []byte) error {
	if l.mu.out == nil {
		return nil
	}
	wait := 50 * time.Millisecond
	for {
		_, err := l.mu.out.WriteAt(lines, l.mu.length) // at the same place again, should it fail half-way
		if err == nil {
			if l.mu.stats.LastErr != nil {
				l.o.Logger.Info("log can be written again", "path", l.o.Path)
				l.mu.stats.LastErr = nil
			}
			return nil
		}
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
			return os.ErrClosed
		}
		if l.mu.stats.LastErr == nil {
			l.o.Logger.Error("log cannot be written; the container's output waits", "path", l.o.Path, "err", err)
		}
		l.mu.stats.LastErr = err
		t := time.NewTimer(wait)
		select {
		case <-l.closing:
			t.Stop()
			return os.ErrClosed
		case <-t.C:
		}
		wait = min(2*wait, 5*time.Second)
	}
}
