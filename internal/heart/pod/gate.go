// SPDX-License-Identifier: Apache-2.0

package pod

import "context"

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
