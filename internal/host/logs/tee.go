// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// maxTees is how many tees a container may have.
const maxTees = 64

// tees are those who read along with the log.
type tees struct {
	count atomic.Int32 // so that a log that nobody reads along with costs nothing

	mu     sync.Mutex
	all    map[*Tee]bool
	newest *ring // what all of them read; nil while there are none
	over   bool  // no output comes any more
}

// Tee reads a container's output behind its spool: what is in the spool already, and will be in the
// log whatever becomes of berth. All tees of a container read the same ring, so one more costs
// nothing but its place in it. A reader that is slow loses the oldest output, and holds nobody up.
type Tee struct {
	from *tees
	wake chan struct{} // holds a value when there may be something to read

	// Guarded by from.mu:
	ring *ring
	at   int64 // where it reads next
	end  int64 // where it ends, once it is over
	over bool
}

// Attachment is what a client that attaches to a container needs of its stdio.
type Attachment struct{ l *Log }

// Attachment returns the part of the stdio for clients that attach.
func (l *Log) Attachment() Attachment { return Attachment{l} }

// Tee begins to read what the container writes from now on. The caller closes it. The error is
// ErrResourceExhausted when there are too many already.
func (a Attachment) Tee() (*Tee, error) {
	all := &a.l.tees
	t := &Tee{from: all, wake: make(chan struct{}, 1)}
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

// Next waits for output and returns some of it: of stderr, or else of stdout. The output is the
// caller's. lost is how many bytes before it the reader was too slow for. The error is io.EOF once
// the output has ended or the tee is closed, and everything was returned.
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

// Close ends the tee. What was written before can still be read, unless other tees go on and the
// ring has no room left for it. It may be called again.
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

func (t *Tee) wakeLocked() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// copied gives the tees what a stream has added to its spool last. A spool that cannot be read is a
// loss for them, and the log will say why.
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
// that waits for the container to read. ErrFailedPrecondition says that the container has no stdin,
// or that it was closed.
func (a Attachment) OpenStdin() (io.WriteCloser, error) {
	if !a.l.o.Stdin {
		return nil, fmt.Errorf("the container has no stdin: %w", errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(a.l.o.in("stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err == nil && a.l.o.StdinOnce {
		if err = a.l.takeStdin(); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the container's stdin is closed: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return f, nil
}

// CloseStdin closes this end of the container's stdin if it is to end with its first client, and
// reports whether it is. The container reads the end of it once the shim has closed its end, too.
func (a Attachment) CloseStdin() bool {
	l := a.l
	if !l.o.Stdin || !l.o.StdinOnce {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stdin != nil {
		_ = l.stdin.Close()
	}
	_ = os.Remove(l.o.in("stdin")) // nobody opens it again
	return true
}

// taken is a file that says that a container's stdin, which ends with its first client, has had
// one: a berth that is killed takes the client's end with it, and the next one must know.
const taken = "stdin.taken"

func (l *Log) takeStdin() error {
	f, err := os.OpenFile(l.o.in(taken), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// stdinOver reports whether the only client that the stdin may have was one of an earlier berth's,
// which ended without ending the stdin. If so, nobody can open it any more.
func (l *Log) stdinOver() bool {
	if !l.o.Stdin || !l.o.StdinOnce {
		return false
	}
	if _, err := os.Lstat(l.o.in(taken)); err != nil {
		return false
	}
	_ = os.Remove(l.o.in("stdin"))
	return true
}

// StdinOver reports whether the container's stdin ended with an earlier berth. The shim may still
// have its end of it open: the container reads the end of its input once that is closed, too.
func (l *Log) StdinOver() bool { return l.over }

// Terminal reports whether the container has a terminal.
func (a Attachment) Terminal() bool { return a.l.o.Terminal }
