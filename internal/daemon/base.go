// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"slices"
	"sync/atomic"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/ops"
	"berth/internal/history/observe"
)

// base holds the values that every wing is given.
type base struct {
	cfg      config.Config                  // of the start
	settings *atomic.Pointer[config.Config] // those that hold now
	log      *asynclog.Log
	metrics  *observe.Metrics
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
	return b, errors.Join(makeDir(cfg.Root, rootMode), makeDir(cfg.State, stateMode))
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
