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
func (s *serving) openCheckpoints(w wings) {
	s.checkpoints = checkpoint.New(checkpoint.Config{
		Dir:     filepath.Join(w.cfg.Root, "checkpoints"),
		Pods:    w.heart.core.Pods,
		Runtime: w.engine.ctrd,
		Begin:   s.beginCheckpoint,
		Thaw:    cgroup.Thaw,
		Logger:  w.log.Logger,
	})
	s.restorer = checkpoint.NewRestorer(checkpoint.RestorerConfig{
		Dir:  filepath.Join(w.cfg.Root, "restored-pods"),
		Pods: w.heart.core.Pods,
		ImageID: func(ref string) string {
			img, err := w.images.service.Resolve(ref)
			if err != nil {
				return ""
			}
			return img.ID
		},
		Logger: w.log.Logger,
	})
}

// beginCheckpoint puts a checkpoint on record, which reads all of a container's memory.
func (s *serving) beginCheckpoint(ctx context.Context, t pod.Target, location string) (end func(error), err error) {
	v, err := s.access.Begin(stream.Access{
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
