// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/ops"
)

// operations owns the goroutines that outlive the calls that began them: creations, starts, log
// pumps and listeners. Controller.Run waits for them.
type operations struct {
	timeout time.Duration // of one operation
	list    *ops.List

	// life ends when the controller stops; then every operation ends with it.
	life context.Context
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool // nothing is begun any more
	wg     sync.WaitGroup
}

// errStopping refuses requests while berth stops.
var errStopping = fmt.Errorf("berth is stopping; ask again once it is back: %w", errdefs.ErrUnavailable)

func newOperations(timeout time.Duration, list *ops.List) *operations {
	o := &operations{timeout: timeout, list: list}
	o.life, o.end = context.WithCancel(context.Background())
	return o
}

// spawn runs f in a goroutine that close waits for. False: berth is stopping, and f does not run.
func (o *operations) spawn(f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.wg.Go(f)
	return true
}

// outlive begins work that may outlive the call that ctx belongs to. The context that it returns
// ends with berth or after the timeout of operations, instead of with ctx. The caller calls end
// when the work is over.
func (o *operations) outlive(ctx context.Context, w ops.Work) (_ context.Context, op *ops.Op, end func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	stop := context.AfterFunc(o.life, cancel)
	ctx, op = o.list.Part(ctx, w)
	return ctx, op, func() { op.End(); stop(); cancel() }
}

// stopping reports whether berth is being stopped.
func (o *operations) stopping() bool { return o.life.Err() != nil }

// close ends the operations in flight and waits for them.
func (o *operations) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.end()
	o.wg.Wait()
}

// guard turns a panic of an operation into its error: the call ends, its unit is undone or given
// up, and the others go on. The stack is in the error, which is logged by the caller.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v: %w\n%s", p, errdefs.ErrInternal, debug.Stack())
		}
	}()
	return f()
}
