// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
)

// gate is a lock that can be waited for with a context. Make it with a capacity of one.
type gate chan struct{}

func (g gate) lock(ctx context.Context) error {
	if g.tryLock() {
		return nil
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

func (g gate) tryLock() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) unlock() { <-g }

// ctxError is why ctx ended: the cause that whoever cancelled it gave, or one of the two errors of
// package context.
func ctxError(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case cause == nil || errors.Is(cause, context.Canceled):
		return context.Canceled
	default:
		return cause
	}
}
