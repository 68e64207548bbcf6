// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"

	"berth/internal/cgroup"
	"berth/internal/checkpoint"
)

// openCheckpoints makes what writes checkpoints, and what makes pods from them.
func (d *daemon) openCheckpoints() error {
	d.checkpoints = checkpoint.New(checkpoint.Config{
		Dir:     filepath.Join(d.cfg.Root, "checkpoints"),
		Pods:    d.core.Pods,
		Runtime: d.ctrd,
		Thaw:    cgroup.Thaw,

		MaxBytes: int64(d.cfg.Checkpoint.MaxMiB) << 20,
		Logger:   d.log.Logger,
	})
	d.restorer = checkpoint.NewRestorer(checkpoint.RestorerConfig{
		Dir:  filepath.Join(d.cfg.Root, "restored-pods"),
		Pods: d.core.Pods,
		ImageID: func(ref string) string {
			img, err := d.images.Resolve(ref)
			if err != nil {
				return ""
			}
			return img.ID
		},
		Logger: d.log.Logger,
	})
	return nil
}
