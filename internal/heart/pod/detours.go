// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/event"
)

// detours are the ways that a start has to go only if something happened before it. Each comes back
// to the start at the place where it left it, so that a reader of the start need not follow them.
// u.task must be held for all of them.
type detours interface {
	// update puts resources that were changed since u was created into the specification that u
	// starts with. It does nothing if none were.
	update(ctx context.Context, u *unit) error
	// revive starts the shim of the sandbox of u again, if it has died.
	revive(ctx context.Context, u *unit) error
	// takeBack undoes an attempt that did not get to the program of u. The next attempt finds
	// nothing of it, and a new writable layer.
	takeBack(ctx context.Context, u *unit) error
}

// elsewhere leads to the types that know these ways.
type elsewhere struct {
	updater  *updater
	reviver  *reviver
	teardown *teardown
}

func (e elsewhere) update(ctx context.Context, u *unit) error { return e.updater.beforeStart(ctx, u) }

func (e elsewhere) revive(ctx context.Context, u *unit) error { return e.reviver.revive(ctx, u) }

func (e elsewhere) takeBack(ctx context.Context, u *unit) error { return e.teardown.takeBack(ctx, u) }

// reviver starts shims again that have died under their pods.
type reviver struct {
	shims       Shims
	undoTimeout time.Duration
	obs         Observer
}

// revive starts the shim of the sandbox of u again, which has died. The remains of a failed
// start of it are ended first: they have the pod's socket, and the next start would take them for
// the shim, even if they never answer.
func (r *reviver) revive(ctx context.Context, u *unit) error {
	p := u.pod
	// The release of the shim takes this lock, too, so that a shim started now is not missed by it.
	if err := p.task.lock(ctx); err != nil {
		return fmt.Errorf("start the shim of sandbox %s again: %w", p.id, err)
	}
	defer p.task.unlock()
	if err := p.mustBeReady(); err != nil {
		return err
	}
	err := r.shims.StartShim(ctx, SandboxRequest{
		ID:        p.id,
		Handler:   p.handler,
		Config:    p.sandbox.Config,
		CreatedAt: p.clock.Wall(p.sandbox.CreatedAt),
		NetNS:     p.sandbox.NetNS,
		Group:     p.sandbox.ShimGroup,
		// the shim reads annotations, and needs none
		Spec: &specs.Spec{Version: specs.Version, Linux: &specs.Linux{}},
	})
	if errdefs.IsAlreadyExists(err) {
		return nil // another container was faster, or it was not the shim that was missing
	}
	if err == nil {
		r.obs.Note(p.id, event.ShimRestarted{})
		return nil
	}
	if p.serves(u) { // another container may have been faster
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.undoTimeout)
	defer cancel()
	return errors.Join(err, absent(r.shims.EndShim(ctx, p.id)))
}
