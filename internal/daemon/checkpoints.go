// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"path/filepath"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/host/cgroup"
	"berth/internal/serve/checkpoint"
	"berth/internal/serve/stream"
)

// openCheckpoints makes what writes checkpoints, and what makes pods from them.
func (d *daemon) openCheckpoints() error {
	d.checkpoints = checkpoint.New(checkpoint.Config{
		Dir:     filepath.Join(d.cfg.Root, "checkpoints"),
		Pods:    d.core.Pods,
		Runtime: d.ctrd,
		Begin:   d.beginCheckpoint,
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

// beginCheckpoint puts a checkpoint on record, which reads all of a container's memory.
func (d *daemon) beginCheckpoint(ctx context.Context, t pod.Target, location string) (end func(error), err error) {
	v, err := d.access.Begin(stream.Access{
		What:   "checkpoint",
		Target: t,
		By:     event.ClientOf(ctx),
		Args:   []string{location},
	})
	if err != nil {
		return nil, err
	}
	return func(err error) { v.End(0, err, 0, 0) }, nil
}
