// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"berth/internal/base/event"
	"berth/internal/heart/state"
)

// remover removes units.
type remover struct {
	stopper *stopper
	orphans *orphans
	lanes   *lanes
	obs     Observer
}

// removePod removes a sandbox and its containers.
func (r *remover) removePod(ctx context.Context, u *unit) error {
	// On record for the whole pod, before anything can hang: the removal goes on without the caller.
	for _, m := range append(u.containers(), u) {
		if err := absent(r.mark(ctx, m)); err != nil {
			return err
		}
	}
	if err := r.stopper.stopPod(ctx, u); err != nil {
		if u.now().Phase.Ended() {
			r.lanes.release(u) // nothing else would before the next relist
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, ct := range u.containers() {
		g.Go(func() error { return guard(func() error { return r.remove(gctx, ct) }) })
	}
	g.Go(func() error { return guard(func() error { return r.orphans.removeMembers(gctx, u.id) }) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", u.id, err)
	}
	return r.remove(ctx, u)
}

// remove records that u is to be removed, ends it and waits for its removal.
func (r *remover) remove(ctx context.Context, u *unit) error {
	if err := r.mark(ctx, u); err != nil {
		return absent(err) // removed by another, or its creation came to nothing
	}
	if err := r.stopper.stop(ctx, u, 0); err != nil {
		return fmt.Errorf("remove %s %s: the removal goes on by itself: %w", u.kind(), u.id, err)
	}
	return r.lanes.waitRemoved(ctx, u)
}

// mark records that u is to be removed, and notes who asked for it first.
func (r *remover) mark(ctx context.Context, u *unit) error {
	already := u.now().Removing
	err := markRemoving(ctx, u)
	if err == nil && !already {
		r.obs.Note(u.id, event.RemovalRequested{By: event.ClientOf(ctx)})
	}
	return err
}

// markRemoving records that u is to be removed. From then on it is not started any more, and its
// processes are ended: by the caller, or by the audit if the caller is gone.
func markRemoving(ctx context.Context, u *unit) error {
	return u.changeFor(ctx, func(st *state.Status) bool {
		changed := !st.Removing
		st.Removing, st.Stopping = true, true
		return changed
	})
}
