// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/base/retry"
)

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
	if l.direct && !l.keeper.connect(l.started) {
		return nil
	}
	all := make(chan struct{})
	var running atomic.Int32
	running.Store(int32(len(l.streams)))
	for _, s := range l.streams {
		if !l.enter() {
			return nil
		}
		go func() {
			defer l.leave()
			l.pump(s)
			if running.Add(-1) == 0 {
				close(all)
				l.keeper.dismiss() // or it goes with Close
			}
		}()
	}
	if len(l.streams) == 0 {
		close(all)
		l.keeper.dismiss()
	}
	if l.direct {
		l.keeper.attend(all)
	}
	select {
	case <-all:
	case <-l.closing:
		if retry.Sleep(all, leaveTimeout) {
			return nil
		}
	}
	for _, s := range l.streams {
		if !s.ended {
			return nil
		}
	}
	l.tees.end()
	close(l.drained)
	return nil
}

// Drained returns a channel that is closed when every stream has ended and all output is in the
// log.
func (l *Log) Drained() <-chan struct{} { return l.drained }

// Drain returns when everything that the container wrote before it ended is in its log, an
// unfinished line included, or with ctx's error. Call it when the container's processes are dead.
// If berth reads the container's own pipes, that is the moment at which they are empty, even if
// another process holds them open. If the shim copies the output, only the shim knows when it has
// copied all; it signals that by closing its end.
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

// Flush returns when the current content of the pipes is in the log, an unfinished line included,
// or with ctx's error. Use it if another process holds the container's output open.
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
	if err := l.withTurn(ctx, l.out.reopen); err != nil {
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

// takeTurn waits for the turn; its holder may be blocked by a frozen disk.
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

// Stats returns the totals so far.
func (l *Log) Stats() Stats {
	st := Stats{Bytes: l.bytes.Load(), Lines: l.out.lines.Load()}
	for _, s := range l.streams {
		if err := s.failure.Load(); err != nil {
			st.LastErr = *err
		}
	}
	return st
}

// fail notes why a stream's output cannot be written, and ok that it can be. Only a change is
// reported.
func (s *stream) fail(note func(event.Event), err error) {
	if s.failure.Swap(&err) == nil {
		note(event.OutputHeld{Stream: s.name, Err: err.Error()})
	}
}

func (s *stream) ok(note func(event.Event)) {
	if s.failure.Swap(nil) != nil {
		note(event.OutputResumed{Stream: s.name})
	}
}

// enter reports whether the caller may use the files, until it calls leave; it returns false after
// Close.
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

func (l *Log) isClosed() bool { return retry.Closed(l.closing) }
