// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/heart/state"
)

// wings holds everything below the server of CRI, in the order in which it is opened. Each part is
// made complete by the function that opens it, from parts that are complete.
type wings struct {
	base
	records    *state.Store
	sockets    *sockets
	containerd *containerd
	host       host
	images     images
	engine     engine
	history    history
	hooks      hooks
	heart      heart
}

// openWings opens everything below the server of CRI, and stops at the first error.
func openWings(ctx context.Context, cfg config.Config, log *asynclog.Log, u *undo) (w wings, err error) {
	if w.base, err = openBase(cfg, log, u); err != nil {
		return w, err
	}
	if w.records, err = openRecords(w.base); err != nil { // another berth uses them
		return w, err
	}
	if w.sockets, err = openSockets(w.base); err != nil { // calls wait in their backlogs from now on
		return w, err
	}
	if w.containerd, err = openContainerd(w.base); err != nil {
		return w, err
	}
	if w.host, err = openHost(w.base, w.sockets, w.records.Owner()); err != nil {
		return w, err
	}
	if w.images, err = openImages(w.base, w.containerd, w.records.Owner()); err != nil {
		return w, err
	}
	if w.engine, err = openEngine(w.containerd, w.host, w.images, w.records.Owner()); err != nil {
		return w, err
	}
	asked := &asked{}
	if w.history, err = openHistory(ctx, w.base, asked); err != nil {
		return w, err
	}
	if w.hooks, err = openHooks(w.base, w.sockets, w.host, w.engine, asked); err != nil {
		return w, err
	}
	w.heart = openHeart(w, asked)
	return w, nil
}

// openRecords opens the records, and refuses to where another berth has them open.
func openRecords(b base) (*state.Store, error) {
	store, err := state.Open(b.cfg.Root)
	if err == nil {
		b.undo.add(store.Close)
	}
	return store, err
}
