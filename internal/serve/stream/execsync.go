// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/budget"
	"berth/internal/heart/pod"
)

const (
	// maxOutput is how much output ExecSync keeps, both streams together. The kubelet takes
	// messages of up to 16 MiB, of which the rest of the message needs some bytes.
	maxOutput = 16<<20 - 4<<10
	// memoryChunk is the unit in which output is kept and counted.
	memoryChunk = 64 << 10
)

// endTimeout is how long a call waits for the end of a process that was killed, and for the exit
// code of one whose container has ended.
const endTimeout = 500 * time.Millisecond

// Result is the output of a command, and its exit code.
type Result struct {
	Stdout []byte
	Stderr []byte
	Code   int32
}

// ExecSync runs a command in a container and returns when it has ended. With a timeout of more than
// zero the command is killed when the timeout has passed, and the error is
// context.DeadlineExceeded. It is killed, too, when ctx ends. Other errors: ErrNotFound without the
// container, ErrFailedPrecondition when it does not run, ErrInvalidArgument for an
// empty command or a negative timeout, ErrResourceExhausted when there are too many already.
func (s *Service) ExecSync(ctx context.Context, id string, args []string, timeout time.Duration) (Result, error) {
	if len(args) == 0 {
		return Result{}, fmt.Errorf("exec in container %s: cmd is empty: %w", id, errdefs.ErrInvalidArgument)
	}
	if timeout < 0 {
		return Result{}, fmt.Errorf("exec in container %s: timeout %s is negative: %w", id, timeout, errdefs.ErrInvalidArgument)
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		cause := fmt.Errorf("command %q timed out after %s: %w", args, timeout, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, cause)
		defer cancel()
	}
	t, err := s.container(id)
	if err != nil {
		return Result{}, fmt.Errorf("exec in container %s: %w", id, err)
	}
	var r Result
	err = s.visited(ctx, Access{What: "exec-sync", Target: t, Args: args, Timeout: timeout}, &client{}, func(ctx context.Context) (int32, error) {
		r, err = s.execSync(ctx, t, args)
		return r.Code, err
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Result{}, fmt.Errorf("exec in container %s: %w", id, err)
	}
	return r, nil
}

func (s *Service) execSync(ctx context.Context, t pod.Target, args []string) (Result, error) {
	p, err := s.start(ctx, t, command{
		args:    args,
		streams: streams{stdout: true, stderr: true},
		of:      s.commands,
		join:    true,
	})
	if err != nil {
		return Result{}, err
	}
	defer p.abandon()
	kept := &capture{memory: s.memory, pod: t.PodID}
	defer kept.release()
	out := copyOutput(p.pipes, kept.stdout(), kept.stderr())
	if err := p.result(ctx); err != nil {
		return Result{}, err
	}
	out.drain(ctx.Done()) // the process has ended within its time: its output until now counts
	r := kept.result()
	r.Code = int32(p.code)
	return r, nil
}

// result waits for the end of the process. If ctx ends first, it abandons the process, which is
// killed, and waits a moment longer, so that it is usually gone when the call returns.
func (p *process) result(ctx context.Context) error {
	var err error
	select {
	case <-p.exited:
		return p.exitErr
	case <-ctx.Done():
		err = ctx.Err()
		p.abandon()
	case <-p.s.stopping:
		err = fmt.Errorf("berth stops: %w", errdefs.ErrUnavailable)
	case <-p.containerEnded:
		err = fmt.Errorf("the container has ended: %w", errdefs.ErrFailedPrecondition)
	}
	t := time.NewTimer(endTimeout)
	defer t.Stop()
	select {
	case <-p.exited:
		if ctx.Err() == nil && p.exitErr == nil {
			return nil // it ended by itself, just before its container did
		}
	case <-t.C:
	}
	return err
}

// capture keeps the output of a process, up to maxOutput and as long as its pod has memory.
type capture struct {
	memory *budget.Budget
	pod    string

	mu      sync.Mutex
	kept    int
	taken   int64 // of memory
	dropped int64
	refused bool // its pod has no more memory
	out     chunks
	err     chunks
	closed  bool
}

// chunks are output in pieces, which cost no more than there is in them and memoryChunk.
type chunks [][]byte

func (c *chunks) add(b []byte) {
	for len(b) > 0 {
		last := len(*c) - 1
		if last < 0 || len((*c)[last]) == memoryChunk {
			*c = append(*c, nil)
			last++
		}
		n := min(len(b), memoryChunk-len((*c)[last]))
		(*c)[last] = append((*c)[last], b[:n]...)
		b = b[n:]
	}
}

// join returns the output in one piece, and drops it from c.
func (c *chunks) join() []byte {
	n := 0
	for _, b := range *c {
		n += len(b)
	}
	all := make([]byte, 0, n)
	for i, b := range *c {
		all = append(all, b...)
		(*c)[i] = nil
	}
	*c = nil
	return all
}

type captured struct {
	c  *capture
	to *chunks
}

func (c *capture) stdout() captured { return captured{c, &c.out} }
func (c *capture) stderr() captured { return captured{c, &c.err} }

// Write keeps as much as there is room for. It takes everything, so that the process does not
// block.
func (w captured) Write(b []byte) (int, error) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := 0
	if !c.closed { // a process that holds the output open may write after the result was taken
		keep = min(len(b), maxOutput-c.kept, c.room(len(b)))
	}
	w.to.add(b[:keep])
	c.kept += keep
	c.dropped += int64(len(b) - keep)
	return len(b), nil
}

// room takes memory for n bytes more, and returns for how many of them there is some.
func (c *capture) room(n int) int {
	want := int64(min(c.kept+n, maxOutput)) - c.taken
	for ; want > 0; want -= memoryChunk {
		got := c.memory.TakeSome(c.pod, memoryChunk)
		c.taken += got
		if got < memoryChunk {
			if !c.refused { // each further write of the process looks again
				c.memory.Refuse()
			}
			c.refused = true
			break
		}
	}
	return int(c.taken) - c.kept
}

// result returns the kept output. Later output is dropped.
func (c *capture) result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	r := Result{Stdout: c.out.join(), Stderr: c.err.join()}
	if c.dropped > 0 {
		r.Stderr = fmt.Appendf(r.Stderr, "\nberth: the output is larger than the %d bytes that were kept; %d bytes were dropped\n", c.kept, c.dropped)
	}
	return r
}

// release gives the memory back.
func (c *capture) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.out, c.err = nil, nil
	c.memory.Give(c.pod, c.taken)
	c.taken = 0
}
