// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"slices"
	"sync/atomic"

	"berth/internal/base/asynclog"
	"berth/internal/base/clock"
	"berth/internal/base/config"
	"berth/internal/base/ops"
	"berth/internal/history/observe"
	"berth/internal/host/kernelclock"
)

// base holds the values that every wing is given.
type base struct {
	cfg      config.Config                  // of the start
	settings *atomic.Pointer[config.Config] // those that hold now
	log      *asynclog.Log
	metrics  *observe.Metrics
	clock    *clock.Clock
	ops      *ops.List // what is under way
	libexec  string    // the directory of the programs that berth brings along
	undo     *undo
}

// openBase finds the programs that berth brings along, and makes berth's own directories.
func openBase(cfg config.Config, log *asynclog.Log, u *undo) (base, error) {
	b := base{
		cfg:      cfg,
		settings: &atomic.Pointer[config.Config]{},
		log:      log,
		metrics:  observe.NewMetrics(),
		ops:      &ops.List{},
		undo:     u,
	}
	b.settings.Store(&cfg)
	var err error
	if b.libexec, err = findLibexec(cfg.Libexec); err != nil {
		return base{}, err
	}
	if err := errors.Join(makeDir(cfg.Root, rootMode), makeDir(cfg.State, stateMode)); err != nil {
		return base{}, err
	}
	if b.clock, err = clock.Open(clock.Path(cfg.Root), kernelclock.Open()); err != nil {
		log.Warn("the line of instants does not go on as it was", "err", err)
	}
	return b, nil
}

// embeds reports whether containerd runs in this process.
func (b base) embeds() bool { return b.cfg.Containerd.Address == "" }

// panickedOverImage counts a panic over an image.
func (b base) panickedOverImage() { b.metrics.Panicked("image") }

// undo closes everything that was opened, the last first.
type undo struct{ list []func() error }

func (u *undo) add(f func() error) { u.list = append(u.list, f) }

func (u *undo) run(log *asynclog.Log) {
	for _, f := range slices.Backward(u.list) {
		if err := f(); err != nil {
			log.Warn("stop", "err", err)
		}
	}
}
