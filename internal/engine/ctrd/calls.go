// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/containerd/errdefs"
)

// callsPerTask is how many calls about one task may be under way at a time.
const callsPerTask = 16

// calls counts, by ID, the calls to the shim of a task that have not returned.
type calls struct {
	mu sync.Mutex
	of map[string]int
}

func (c *calls) enter(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	if c.of[id] >= callsPerTask {
		return false
	}
	c.of[id]++
	return true
}

func (c *calls) leave(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[id]--; c.of[id] == 0 {
		delete(c.of, id)
	}
}

// hangs is the error of a call that was not made because the shim is known not to answer. It wraps
// ErrUnavailable. Containerd's own absence is another error, and proves nothing about the shim.
type hangs string

func (h hangs) Error() string { return string(h) + ": " + errdefs.ErrUnavailable.Error() }

func (hangs) Unwrap() error { return errdefs.ErrUnavailable }

// reachable returns ErrUnavailable if the shim of id is there, but has not answered since
// containerd started, which therefore does not know it.
func reachable(ctx context.Context, c *Containerd, id string) error {
	if c.setAside(ctx, id) {
		return hangs("its shim has not answered since containerd started")
	}
	return nil
}

// askShim runs f, a call that containerd passes on to the shim of a task, and returns when f
// returns or when ctx ends, whichever comes first. It has to: a containerd in this process writes
// to the shim without a bound, and a shim that is stopped (SIGSTOP) stops reading. A call that was
// given up goes on by itself; the shim's end ends it. If callsPerTask of them are in flight, the
// next one is ErrUnavailable at once. A panic of f is ErrInternal.
func askShim[T any](ctx context.Context, c *Containerd, id string, f func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if err := reachable(ctx, c, id); err != nil {
		return none, err
	}
	if !c.calls.enter(id) {
		return none, hangs(fmt.Sprintf("its shim has not answered %d earlier calls", callsPerTask))
	}
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil { // it ends this call, as one in the caller's goroutine would
				a.err = fmt.Errorf("panic: %v: %w\n%s", p, errdefs.ErrInternal, debug.Stack())
			}
			c.calls.leave(id)
			answered <- a
		}()
		a.v, a.err = f(ctx)
	}()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answered: // it ended together with ctx
		return a.v, a.err
	default:
		return none, ctx.Err()
	}
}
