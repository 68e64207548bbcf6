// SPDX-License-Identifier: Apache-2.0

package asynclog

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/base/retry"
)

// The bounds of the queue, including the batch that is being written.
const (
	maxRecords = 8192
	maxBytes   = 4 << 20
	// maxBatch is how many bytes one write(2) gets at most, unless a single record is larger.
	maxBatch = 64 << 10
)

// drainTimeout is how long Run waits for the output after its context has ended.
const drainTimeout = time.Second

// Log is a logger whose output is written by Run.
type Log struct {
	*slog.Logger

	out     io.Writer
	handler func(io.Writer) slog.Handler
	dropped atomic.Uint64
	wake    retry.Wake // holds a token while Run has something to look at

	mu struct {
		sync.Mutex
		queue    []record
		size     usage  // of the queue and of the batch that is being written
		missing  uint64 // records dropped since the last one that was accepted
		accepted uint64 // records ever accepted
		finished uint64 // records ever written, or lost while being written
		flushes  []flush
	}
}

// record is one formatted record.
type record struct {
	text    []byte
	missing uint64 // records that were dropped just before this one
}

type usage struct{ records, bytes int }

// flush is a caller of Flush, who waits until finished reaches target.
type flush struct {
	target uint64
	done   chan struct{}
}

// New makes a log that formats with a handler and writes to out. The handler must pass each record
// to its writer in one call of Write, as the handlers of log/slog do. Nothing is written before
// [Log.Run].
func New(out io.Writer, handler func(io.Writer) slog.Handler) *Log {
	l := &Log{out: out, handler: handler, wake: retry.NewWake()}
	l.Logger = slog.New(handler(l))
	return l
}

// Write queues one record, or drops it if the queue is full. It never blocks and always succeeds.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if size := &l.mu.size; size.records < maxRecords && size.bytes+len(p) <= maxBytes {
		size.records++
		size.bytes += len(p)
		l.mu.accepted++
		l.mu.queue = append(l.mu.queue, record{bytes.Clone(p), l.mu.missing})
		l.mu.missing = 0
	} else {
		l.mu.missing++
		l.dropped.Add(1)
	}
	l.wake.Up()
	return len(p), nil
}

// Dropped returns how many records were dropped so far.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Run writes the queue to the output until ctx ends, and then, for a second at most, the rest of
// it. A write that hangs beyond that is abandoned together with its goroutine, because it cannot be
// interrupted.
func (l *Log) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.write(ctx)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	retry.Sleep(done, drainTimeout)
}

// write writes batch after batch, and returns when ctx has ended and the queue is empty.
func (l *Log) write(ctx context.Context) {
	failed := false
	for {
		if b := l.take(!failed); len(b.text) > 0 {
			_, err := l.out.Write(b.text)
			l.finish(b, err)
			failed = err != nil
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			select {
			case <-l.wake:
			default:
				return
			}
		}
		failed = false
	}
}

// batch is the text of one write(2).
type batch struct {
	text    []byte
	size    usage  // its share of the queue
	noticed uint64 // records that the text reports as missing
}

// take takes the next batch off the queue. If only a notice is due, it is taken if alone is true:
// an output that fails gets the next notice together with the next record.
func (l *Log) take(alone bool) (b batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	notice := func(n uint64) {
		if n > 0 {
			b.text = append(b.text, l.notice(n)...)
			b.noticed += n
		}
	}
	for _, r := range l.mu.queue {
		if b.size.records > 0 && len(b.text)+len(r.text) > maxBatch {
			break
		}
		notice(r.missing)
		b.text = append(b.text, r.text...)
		b.size.records++
		b.size.bytes += len(r.text)
	}
	clear(l.mu.queue[:b.size.records]) // let go of the texts
	l.mu.queue = l.mu.queue[b.size.records:]
	if len(l.mu.queue) == 0 {
		l.mu.queue = nil // let go of the array
		if alone || b.size.records > 0 {
			notice(l.mu.missing)
			l.mu.missing = 0
		}
	}
	return b
}

// finish gives back the room that a batch took. A batch that could not be written is lost.
func (l *Log) finish(b batch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.size.records -= b.size.records
	l.mu.size.bytes -= b.size.bytes
	records := uint64(b.size.records)
	l.mu.finished += records
	if err != nil {
		l.dropped.Add(records)
		if len(l.mu.queue) > 0 {
			l.mu.queue[0].missing += records + b.noticed
		} else {
			l.mu.missing += records + b.noticed
		}
	}
	l.mu.flushes = slices.DeleteFunc(l.mu.flushes, func(f flush) bool {
		if f.target > l.mu.finished {
			return false
		}
		close(f.done)
		return true
	})
}

// notice formats the record that reports n missing records.
func (l *Log) notice(n uint64) []byte {
	var b bytes.Buffer
	r := slog.NewRecord(time.Now(), slog.LevelError, "records of this log were dropped because its output was not read", 0)
	r.AddAttrs(slog.Uint64("records", n))
	_ = l.handler(&b).Handle(context.Background(), r) // a bytes.Buffer returns no error
	return b.Bytes()
}

// Flush waits until everything that was logged before the call is written, for at most so long. It
// reports whether that succeeded. It is for the moment before the process ends on purpose.
func (l *Log) Flush(timeout time.Duration) bool {
	l.mu.Lock()
	f := flush{l.mu.accepted, make(chan struct{})}
	if f.target <= l.mu.finished {
		l.mu.Unlock()
		return true
	}
	l.mu.flushes = append(l.mu.flushes, f)
	l.mu.Unlock()
	return !retry.Sleep(f.done, timeout) // if late, finish closes f.done when the output moves again
}
