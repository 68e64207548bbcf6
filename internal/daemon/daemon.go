// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/processors"
	"berth/internal/history/observe"
)

// Serve runs berth until ctx ends. What comes from changes takes the place of cfg, which differs
// from it in settings that need no restart. ready is called once berth serves. The caller runs the
// log, and goes on running it until Serve has returned. The error says why berth could not start,
// or what broke.
func Serve(ctx context.Context, cfg config.Config, changes <-chan config.Config, ready func(), log *asynclog.Log) error {
	observe.BridgeLibraries(log.Logger)
	boundGarbage()
	if err := refused(cfg); err != nil {
		return err
	}
	if err := missing(cfg); err != nil {
		log.Error("a runtime handler makes no pods until its program is there", "err", err)
	}
	if cfg.Tricks.SpareThreads {
		processors.Spare()
	}
	u := &undo{}
	defer u.run(log)
	w, err := openWings(ctx, cfg, log, u)
	if err != nil {
		return err
	}
	d := &daemon{wings: w}
	if d.serving, err = openServing(w); err != nil {
		return err
	}
	return d.run(ctx, changes, ready)
}

// daemon is everything that is open: the wings, and above them what clients call.
type daemon struct {
	wings
	serving
}
