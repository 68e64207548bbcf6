// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"berth/internal/base/ops"
)

// gate is a lock that can be waited for with a context. Make it with a capacity of one.
type gate chan struct{}

func (g gate) lock(ctx context.Context) error {
	if g.tryLock() {
		return nil
	}
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "an operation on it that began before"})
	defer op.End()
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
