// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"golang.org/x/sys/unix"
)

const (
	// stuckAfter is how long a commit may be in progress before the records count as not writable.
	stuckAfter = 10 * time.Second
	// probeIdle is how long nothing is written before [Store.Watch] writes something, and lookEvery
	// how often it looks.
	probeIdle = 30 * time.Second
	lookEvery = time.Second
)

// NotWrittenError is returned while the records cannot be written, or could not the last time.
type NotWrittenError struct {
	Dir   string    // whose disk it is
	Since time.Time // when that began
	Err   error     // why
}

// Error names the disk.
func (e *NotWrittenError) Error() string {
	return fmt.Sprintf("the records on the disk of %s cannot be written since %s, so that pods cannot be made, and the records of ended containers stay as they are: %v",
		e.Dir, e.Since.UTC().Format(time.RFC3339), e.Err)
}

// Unwrap returns why.
func (e *NotWrittenError) Unwrap() error { return e.Err }

// ConditionReason is the reason of the condition RuntimeReady of CRI.
func (e *NotWrittenError) ConditionReason() string { return "RecordsNotWritable" }

// writes tracks whether the records can be written.
type writes struct {
	mu      sync.Mutex
	err     error     // of the last write; nil: it succeeded, or there was none
	since   time.Time // when writes began to fail
	began   time.Time // when the write that is under way began; zero: there is none
	last    time.Time // when the last one ended
	probing bool      // Watch waits for one
}

func (w *writes) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
}

func (w *writes) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Time{}
}

// note notes the outcome of a write.
func (w *writes) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	if err != nil && w.err == nil {
		w.since = w.last
	}
	w.err = err
}

// NotWritten returns a [NotWrittenError] if the last write failed, if the disk can only be read, or
// if a write takes longer than ten seconds; nil if there is nothing of the kind. It waits for
// nothing. [Store.Watch] tries again whether that has passed.
func (s *Store) NotWritten() error {
	w := &s.writes
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &NotWrittenError{Dir: filepath.Dir(s.path), Since: w.since, Err: w.err}
	if took := time.Since(w.began); !w.began.IsZero() && took > stuckAfter && e.Err == nil {
		e.Since, e.Err = w.began, errors.New("the disk does not answer")
	}
	if e.Err == nil {
		return nil
	}
	return e
}

// Watch tries every second whether the records can be written again, while they cannot, and whether
// they still can if nothing was written for half a minute. changed is called with the result of
// [Store.NotWritten] whenever that becomes an error, and whenever it is nil again. It returns when
// ctx ends, and leaves one write behind at most, on a disk that does not answer.
func (s *Store) Watch(ctx context.Context, changed func(error)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	was := false
	for {
		if s.mayProbe() {
			go s.probe()
		}
		if err := s.NotWritten(); (err != nil) != was {
			was = err != nil
			changed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// mayProbe reports whether it is time to try a write, and if so marks it as begun.
func (s *Store) mayProbe() bool {
	w := &s.writes
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.IsZero() {
		w.last = time.Now() // Open has read everything
	}
	if w.probing || !w.began.IsZero() || w.err == nil && time.Since(w.last) < probeIdle {
		return false
	}
	w.probing = true
	return true
}

// probe writes a record without changes.
func (s *Store) probe() {
	defer func() {
		if p := recover(); p != nil {
			die(p, debug.Stack())
		}
	}()
	s.writing.Lock()
	s.writes.begin()
	err := s.tryWrite()
	s.writes.end()
	s.writing.Unlock()
	if err != nil && !errors.Is(err, errdefs.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	s.writes.note(err)
	s.writes.mu.Lock()
	s.writes.probing = false
	s.writes.mu.Unlock()
}

// tryWrite writes to where the next commit goes. s.writing is held.
func (s *Store) tryWrite() error {
	if s.db.isReadOnly() {
		return s.db.reopen(true)
	}
	if s.log.open {
		return s.put(nil)
	}
	return unix.Access(filepath.Dir(s.path), unix.W_OK) // the first commit has not begun an epoch yet
}
