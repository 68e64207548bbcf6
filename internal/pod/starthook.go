// SPDX-License-Identifier: Apache-2.0

package pod

import "context"

// StartHook is what [Hooks] may implement besides: extensions that take part in the start of
// containers.
type StartHook interface {
	// Created is called after a container became CREATED. It must not block.
	Created(ctx context.Context, t Target)
	// Starting is called before the process of a container is started. An error fails the start.
	Starting(ctx context.Context, t Target) error
}

// notifyCreated calls the hook of a creation, if there is one.
func notifyCreated(ctx context.Context, hooks Hooks, u *unit) {
	if h, ok := hooks.(StartHook); ok {
		h.Created(ctx, targetOf(u))
	}
}

// notifyStarting calls the hook of a start, if there is one.
func notifyStarting(ctx context.Context, hooks Hooks, u *unit) error {
	if h, ok := hooks.(StartHook); ok {
		return h.Starting(ctx, targetOf(u))
	}
	return nil
}
