// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"

	"berth/internal/base/config"
	"berth/internal/daemon/adoption"
	"berth/internal/engine/adopt"
)

// Adopt takes over the pods of containerd's CRI plug-in, or gives them back, while they run: see
// package adoption. A dry run makes no directories.
func Adopt(ctx context.Context, cfg config.Config, r adopt.Request) error {
	if err := refused(cfg); err != nil {
		return err
	}
	if !r.DryRun {
		if err := errors.Join(makeDir(cfg.Root, rootMode), makeDir(cfg.State, stateMode)); err != nil {
			return err
		}
	}
	return adoption.Run(ctx, cfg, r)
}
