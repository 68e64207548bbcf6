// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/base/asynclog"
	"berth/internal/base/retry"
)

// flushTimeout is how long the log may take to be written before berth ends because of a panic.
const flushTimeout = time.Second

// exitPanic is the process's exit code after a panic, the one that the Go runtime uses.
const exitPanic = 2

// group is an errgroup whose goroutines do not panic silently: see the package comment.
type group struct {
	*errgroup.Group
	// crash is called with the panic and does not return. If it is nil, the Go runtime ends the
	// process.
	crash func(where string, p any)
}

// Go runs f in a goroutine of the group. A panic of f ends the process.
func (g *group) Go(where string, f func() error) {
	g.Group.Go(func() error {
		if g.crash != nil {
			defer func() {
				if p := recover(); p != nil {
					g.crash(where, p)
				}
			}()
		}
		return f()
	})
}

// crash logs a panic with the stack of the goroutine that calls it, which is the one that panicked,
// and ends the process. It does not leave the printing to the Go runtime, because a standard error
// without a reader would keep the runtime from ending the process.
func crash(log *asynclog.Log) func(where string, p any) {
	return func(where string, p any) {
		log.Error("berth panicked and ends", "where", where, "panic", p, "stack", string(debug.Stack()))
		log.Flush(flushTimeout)
		os.Exit(exitPanic)
	}
}

// The wait between two attempts of persist.
const (
	firstPersist   = time.Second
	slowestPersist = time.Minute
)

// persist runs f until ctx ends, and whenever f fails, runs it again after a wait that doubles. It
// is for parts without which berth degrades for a while and does not end. what completes the
// sentence "cannot ...".
func persist(ctx context.Context, log *asynclog.Log, what string, f func(context.Context) error) {
	for wait := firstPersist; ; wait = min(2*wait, slowestPersist) {
		began := time.Now()
		err := f(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > slowestPersist { // it worked for a while
			wait = firstPersist
		}
		pause := wait/2 + rand.N(wait) // jitter is not a secret
		log.Warn("cannot "+what+"; trying again", "err", err, "wait", pause)
		if !retry.Sleep(ctx.Done(), pause) {
			return
		}
	}
}
