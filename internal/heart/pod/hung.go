// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"time"

	"berth/internal/base/event"
)

// hungPatience is how long the removal of a task waits for a shared shim before it asks whether the
// shim hangs.
const hungPatience = time.Second

// errHangs ends the work on a task whose shim hangs.
var errHangs = errors.New("the shim that its pod shares with others does not answer")

// deleteAround deletes the task of u, or the place of the sandbox u in a shim. If u is to be
// removed and the shim that its pod shares with others hangs, or cannot delete it, everything that
// the node has of u is removed without the shim: the other pods need it, so it is not killed. The
// rest, which only containerd and the shim know about, is an orphan from then on. It is released
// when the shim goes on or has ended, and the shim is killed after the removal of its last pod.
// u.task must be held.
func (t *teardown) deleteAround(ctx context.Context, u *unit) error {
	failed := u.releaseError() != nil // the attempt before
	asking, end := context.WithCancelCause(ctx)
	defer end(nil)
	look := time.AfterFunc(hungPatience, func() {
		if t.isGone(u) && t.shims.Hangs(asking, u.pod.id) {
			end(errHangs)
		}
	})
	err := t.deleteTask(asking, u, t.lastCode)
	look.Stop()
	hung := errors.Is(context.Cause(asking), errHangs)
	if err == nil || !hung && (ctx.Err() != nil || !t.isGone(u) || !failed && !t.shims.Hangs(ctx, u.pod.id)) {
		return err
	}
	if lerr := t.tasks.EndLeft(ctx, u.id); lerr != nil {
		return errors.Join(err, lerr)
	}
	if err := t.processes.waitGone(ctx, u); err != nil {
		return err
	}
	t.obs.Note(u.id, event.ReleasedAroundShim{Shim: u.pod.sandbox.ShimGroup, Err: err.Error()})
	t.processes.forget(u)
	u.behind.Store(true)
	return nil
}

// isGone reports whether u is to be removed, has no process, and its pod shares a shim.
func (t *teardown) isGone(u *unit) bool {
	o := t.processes.observe(u)
	return u.pod.sandbox.ShimGroup != "" && u.now().Removing && (o == processGone || o == processUnknown)
}
