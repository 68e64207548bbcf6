// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// callsPerTask is how many calls about one task may be under way at a time.
const callsPerTask = 16

// asker bounds the calls to shims. It counts, by ID, those that have not returned.
type asker struct {
	setAside func(ctx context.Context, id string) bool // see [Config.SetAside]; never nil
	state    string                                    // see [Config.StateDir]

	mu sync.Mutex
	of map[string]int
}

func (a *asker) enter(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[id] >= callsPerTask {
		return false
	}
	a.of[id]++
	return true
}

func (a *asker) leave(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[id]--; a.of[id] == 0 {
		delete(a.of, id)
	}
}

// hangs is the error of a call that was not made because the shim is known not to answer. It wraps
// ErrUnavailable. Containerd's own absence is another error, and proves nothing about the shim.
type hangs string

func (h hangs) Error() string { return string(h) + ": " + errdefs.ErrUnavailable.Error() }

func (hangs) Unwrap() error { return errdefs.ErrUnavailable }

// reachable returns ErrUnavailable if the shim of id is there, but has not answered since
// containerd started, which therefore does not know it.
func (a *asker) reachable(ctx context.Context, id string) error {
	if a.setAside(ctx, id) {
		return hangs("its shim has not answered since containerd started")
	}
	return nil
}

// full names the disk of the state directory in an error of the OCI runtime, if it is full: runc
// cannot write the reason of its failure then, which leaves "exit status 255".
func (a *asker) full(err error) error {
	var st unix.Statfs_t
	if err == nil || !says(err, ofRuntime, "") || unix.Statfs(a.state, &st) != nil || st.Bavail > 0 && (st.Files == 0 || st.Ffree > 0) {
		return err
	}
	return fmt.Errorf("%w; the disk of %s is full: %w", err, a.state, unix.ENOSPC)
}

// askShim runs f, a call that containerd passes on to the shim of a task, and returns when f
// returns or when ctx ends, whichever comes first. It has to: a containerd in this process writes
// to the shim without a bound, and a shim that is stopped (SIGSTOP) stops reading. A call that was
// given up goes on by itself; the shim's end ends it. If callsPerTask of them are in flight, the
// next one is ErrUnavailable at once. A panic of f is ErrInternal.
func askShim[T any](ctx context.Context, a *asker, id string, f func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if err := a.reachable(ctx, id); err != nil {
		return none, err
	}
	if !a.enter(id) {
		return none, hangs(fmt.Sprintf("its shim has not answered %d earlier calls", callsPerTask))
	}
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		var r answer
		defer func() {
			if p := recover(); p != nil { // it ends this call, as one in the caller's goroutine would
				r.err = fmt.Errorf("panic: %v: %w\n%s", p, errdefs.ErrInternal, debug.Stack())
			}
			a.leave(id)
			answered <- r
		}()
		r.v, r.err = f(ctx)
		r.err = a.full(r.err)
	}()
	select {
	case r := <-answered:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-answered: // it ended together with ctx
		return r.v, r.err
	default:
		return none, ctx.Err()
	}
}
