// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"berth/internal/base/retry"
)

// maxTees is how many tees a container may have.
const maxTees = 64

// tees are the clients that read along with the log.
type tees struct {
	count atomic.Int32 // so that a log without readers costs nothing

	mu     sync.Mutex
	all    map[*Tee]bool
	newest *ring // the output that all of them read; nil while there are none
	over   bool  // no output comes any more
}

// Tee reads a container's output behind its spool: output that is in the spool already, and so
// reaches the log even if berth is killed. All tees of a container read the same ring, so one more
// costs nothing but its place in it. A slow reader loses the oldest output, and does not block the
// container.
type Tee struct {
	from *tees
	wake retry.Wake // holds a value when there may be something to read

	// Guarded by from.mu:
	ring *ring
	at   int64 // where it reads next
	end  int64 // where it ends, once it is over
	over bool
}

// Attachment is the part of a container's stdio that clients attach to.
type Attachment struct{ l *Log }

// Attachment returns the part of the stdio for clients that attach.
func (l *Log) Attachment() Attachment { return Attachment{l} }

// Tee begins to read the container's output from now on. The caller closes it. It returns
// ErrResourceExhausted if there are too many already.
func (a Attachment) Tee() (*Tee, error) {
	all := &a.l.tees
	t := &Tee{from: all, wake: retry.NewWake()}
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.all) >= maxTees {
		return nil, fmt.Errorf("%d clients read the output already; try again when one has detached: %w", maxTees, errdefs.ErrResourceExhausted)
	}
	if all.newest == nil {
		all.newest = &ring{}
	}
	t.ring, t.at = all.newest, all.newest.to
	t.end, t.over = t.at, all.over
	if t.over {
		return t, nil
	}
	if all.all == nil {
		all.all = map[*Tee]bool{}
	}
	all.all[t] = true
	all.count.Add(1)
	return t, nil
}

// Next waits for output and returns some of it: from stderr if there is any, or else from stdout.
// The caller owns output. lost is how many bytes before it were overwritten because the reader was
// too slow. The error is io.EOF once the output has ended or the tee is closed, and everything was
// returned.
func (t *Tee) Next(ctx context.Context) (output []byte, stderr bool, lost int64, err error) {
	for {
		t.from.mu.Lock()
		end := t.ring.to
		if t.over {
			end = t.end
		}
		if t.at < end {
			output, stderr, lost = t.ring.next(&t.at, end)
			if len(output) > 0 || lost > 0 {
				t.from.mu.Unlock()
				return output, stderr, lost, nil
			}
		}
		over := t.over
		t.from.mu.Unlock()
		if over {
			return nil, false, 0, io.EOF
		}
		select {
		case <-t.wake:
		case <-ctx.Done():
			return nil, false, 0, ctx.Err()
		}
	}
}

// Close ends the tee. Output from before can still be read, unless other tees go on and the ring
// needs the room. It may be called again.
func (t *Tee) Close() {
	all := t.from
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.all[t] {
		delete(all.all, t)
		all.count.Add(-1)
	}
	if len(all.all) == 0 {
		all.newest = nil // the tees that have ended have it still
	}
	t.endLocked()
}

func (t *Tee) endLocked() {
	if !t.over {
		t.over, t.end = true, t.ring.to
	}
	t.wakeLocked()
}

func (t *Tee) wakeLocked() { t.wake.Up() }

// copied gives the tees the output that a stream added to its spool last. If the spool cannot be
// read, the tees lose that output; the log reports the reason.
func (t *tees) copied(s *stream, n int64) {
	if n <= 0 || t.count.Load() == 0 {
		return
	}
	b := make([]byte, n)
	if _, err := s.spool.ReadAt(b, s.size-n); err != nil {
		return
	}
	t.put(b, s.index == 1)
}

// put adds output. It never waits.
func (t *tees) put(b []byte, stderr bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest == nil {
		return
	}
	t.newest.put(b, stderr)
	for one := range t.all {
		one.wakeLocked()
	}
}

// end ends all tees, present and future.
func (t *tees) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for one := range t.all {
		one.endLocked()
	}
	t.all, t.newest, t.over = nil, nil, true
	t.count.Store(0)
}

// OpenStdin opens the container's stdin to write to it. The caller closes it; that wakes a writer
// that waits for the container to read. It returns ErrFailedPrecondition if the container has no
// stdin, or if its stdin was closed.
func (a Attachment) OpenStdin() (io.WriteCloser, error) { return a.l.stdin.writer() }

// CloseStdin closes this end of the container's stdin if it is to end with its first client, and
// reports whether it is. The container reads the end of its input once the shim has closed its end,
// too.
func (a Attachment) CloseStdin() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.l.stdin.close()
}

// StdinOver reports whether the container's stdin ended with an earlier berth. The shim may still
// have its end open: the container reads the end of its input once that is closed, too.
func (l *Log) StdinOver() bool { return l.stdin.over }

// Terminal reports whether the container has a terminal.
func (a Attachment) Terminal() bool { return a.l.o.Terminal }
