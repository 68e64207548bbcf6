// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

const (
	// maxWaiting is how many lines wait for the disk.
	maxWaiting = 4096
	// again is how long to wait after an error of the disk.
	again = time.Second
	// maxLine is how long a line may be that is taken for one.
	maxLine = 64 << 10
)

// file is the file that is appended to. One goroutine writes it, because a disk may not answer.
type file struct {
	path string
	log  *slog.Logger

	mu struct {
		sync.Mutex
		waiting []wanted
		missing int // lines that found no room among those that wait
	}
	wake retry.Wake

	// Of the goroutine alone:
	f      *os.File // nil: it is to be opened
	number uint64   // of the last line
	before string   // its hash
	known  bool     // these two are
	torn   bool     // the last line was not whole
}

// wanted is a line that is to be written.
type wanted struct {
	record Record
	done   chan error // nil if there is no waiter
}

func newFile(path string, log *slog.Logger) *file {
	return &file{path: path, log: log, wake: retry.NewWake()}
}

var errTimeout = errors.New("the disk has not answered in time")

// writeLater queues a line and does not wait for the disk. If the queue is full, the line is
// counted as missing.
func (f *file) writeLater(r Record) {
	f.mu.Lock()
	if len(f.mu.waiting) < maxWaiting {
		f.mu.waiting = append(f.mu.waiting, wanted{record: r})
	} else {
		f.mu.missing++
	}
	f.mu.Unlock()
	f.wake.Up()
}

// write writes a line and waits for it, within a bound.
func (f *file) write(r Record) error {
	w := wanted{record: r, done: make(chan error, 1)}
	f.mu.Lock()
	full := len(f.mu.waiting) >= maxWaiting
	if !full {
		f.mu.waiting = append(f.mu.waiting, w)
	}
	f.mu.Unlock()
	f.wake.Up()
	if full {
		return errTimeout
	}
	t := time.NewTimer(beginTimeout)
	defer t.Stop()
	select {
	case err := <-w.done:
		return err
	case <-t.C:
		return errTimeout
	}
}

// run writes until ctx ends.
func (f *file) run(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.loop(ctx)
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(again):
	}
	return nil
}

func (f *file) loop(ctx context.Context) {
	defer f.close()
	for failing := false; ; {
		err := f.flush()
		if failing != (err != nil) {
			failing = err != nil
			if failing {
				f.log.Error("audit file not written, retrying", "file", f.path, "err", err)
			} else {
				f.log.Info("audit file written again", "file", f.path)
			}
		}
		var retry <-chan time.Time
		if failing {
			retry = time.After(again)
		}
		select {
		case <-f.wake:
		case <-retry:
		case <-ctx.Done():
			_ = f.flush()
			return
		}
	}
}

// flush writes all lines that wait, and puts them onto the disk. Lines with a waiter are not tried
// again: the access is refused, and the line records a beginning.
func (f *file) flush() error {
	f.mu.Lock()
	lines, missing := f.mu.waiting, f.mu.missing
	f.mu.waiting = nil
	f.mu.Unlock()
	if len(lines) == 0 && missing == 0 && f.f != nil {
		return nil
	}
	err := f.append(lines, missing)
	var left []wanted
	for _, l := range lines {
		switch {
		case l.done != nil:
			l.done <- err
		case err != nil:
			left = append(left, l)
		}
	}
	f.mu.Lock()
	if err == nil {
		f.mu.missing -= missing
		f.mu.Unlock()
		return nil
	}
	all := slices.Concat(left, f.mu.waiting)
	kept := all[:min(len(all), maxWaiting)]
	f.mu.waiting = kept
	for _, l := range all[len(kept):] {
		if l.done != nil {
			l.done <- err // which has room
		} else {
			f.mu.missing++
		}
	}
	f.mu.Unlock()
	return err
}

// append writes lines. After an error nothing of them counts as written: the file is cut back to
// where it was, or opened anew if that fails, too.
func (f *file) append(lines []wanted, missing int) error {
	first, err := f.open()
	if err != nil {
		return err
	}
	records := make([]Record, 0, len(lines)+2)
	if first || f.torn {
		what := Started
		if f.torn {
			what = Torn
		}
		records = append(records, Record{At: time.Now(), What: what})
	}
	if missing > 0 {
		records = append(records, Record{At: time.Now(), What: Missing, Count: missing})
	}
	for _, l := range lines {
		records = append(records, l.record)
	}
	var b bytes.Buffer
	number, before := f.number, f.before
	for _, r := range records {
		number++
		r.Number, r.Before = number, before
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("write the audit file: %w", err)
		}
		before = hash(line)
		b.Write(line)
		b.WriteByte('\n')
	}
	st, err := f.f.Stat()
	if err == nil {
		_, err = f.f.Write(b.Bytes())
		if err == nil {
			err = unix.Fdatasync(int(f.f.Fd()))
		}
		if err != nil {
			_ = f.f.Truncate(st.Size()) // a remaining torn line is ended at the next opening
		}
	}
	if err != nil {
		f.close()
		return fmt.Errorf("write the audit file: %w", err)
	}
	f.number, f.before, f.torn = number, before, false
	return nil
}

// open opens the file, unless it is open and still has its name. first is set if it is empty, or if
// another berth wrote it last.
func (f *file) open() (first bool, err error) {
	if f.f != nil {
		have, herr := f.f.Stat()
		st, serr := os.Stat(f.path)
		if herr == nil && serr == nil && os.SameFile(have, st) {
			return false, nil
		}
		f.close() // it was renamed
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return false, err
	}
	opened, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return false, err
	}
	st, err := opened.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.path)
	}
	if err == nil && (!f.known || st.Size() > 0) {
		err = f.goOn(opened, st.Size())
	}
	if err != nil {
		return false, errors.Join(err, opened.Close())
	}
	f.f, f.known = opened, true
	return true, nil
}

// goOn reads the end of the file, to which the next line is chained. A torn line gets an end.
func (f *file) goOn(opened *os.File, size int64) error {
	if size == 0 {
		if !f.known {
			f.number, f.before = 0, ""
		}
		return nil
	}
	b := make([]byte, min(size, 2*maxLine))
	if _, err := opened.ReadAt(b, size-int64(len(b))); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the end of the audit file: %w", err)
	}
	if b[len(b)-1] != '\n' {
		f.torn = true
		if _, err := opened.Write([]byte("\n")); err != nil {
			return fmt.Errorf("end the torn line of the audit file: %w", err)
		}
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	last := b[bytes.LastIndexByte(b, '\n')+1:]
	f.before = hash(last)
	// The numbering goes on after the last whole line.
	for lines := b; len(lines) > 0; {
		i := bytes.LastIndexByte(lines, '\n')
		var r Record
		if json.Unmarshal(lines[i+1:], &r) == nil && r.Number > 0 {
			f.number = r.Number
			break
		}
		f.torn = true
		f.number++
		lines = lines[:max(i, 0)]
	}
	return nil
}

func (f *file) close() {
	if f.f != nil {
		_ = f.f.Close()
		f.f = nil
	}
}
