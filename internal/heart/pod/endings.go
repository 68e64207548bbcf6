// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"sync"

	"berth/internal/base/event"
)

// maxEndings bounds the exits of which the hooks have not been notified, so that a plug-in that
// hangs for ever does not fill the memory with pods that were removed.
const maxEndings = 4096

// endings notifies the hooks of exits that were settled, each on a lane of its own. It knows a unit
// until the hooks have answered, even if the unit is removed meanwhile.
type endings struct {
	hooks Hooks // nil for none
	lanes *lanes
	obs   Observer

	mu    sync.Mutex
	units map[string]*unit // by ID
}

// notify schedules the call of the hooks for u, which was settled.
func (e *endings) notify(u *unit) {
	if e.hooks == nil {
		return
	}
	e.mu.Lock()
	full := len(e.units) >= maxEndings
	if !full {
		e.units[u.id] = u
	}
	e.mu.Unlock()
	if full {
		e.obs.Note(u.id, event.PluginsNotNotified{Waiting: maxEndings})
		return
	}
	e.lanes.notify(u)
}

// attempt calls the hooks for the unit of a lane.
func (e *endings) attempt(ctx context.Context, id string) error {
	e.mu.Lock()
	u, ok := e.units[id]
	e.mu.Unlock()
	if !ok {
		return nil
	}
	if err := e.hooks.Ended(ctx, targetOf(u), u.now().Exit); err != nil {
		return fmt.Errorf("notify plug-ins of the end of %s: %w", id, err)
	}
	e.mu.Lock()
	delete(e.units, id)
	e.mu.Unlock()
	return nil
}
