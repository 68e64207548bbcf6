// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
)

// sweepTimeout is how long a start waits for the removal of leftover layers. A longer removal goes
// on beside it: then a layer may get the number of one that is still there, and the call that makes
// it fails once.
const sweepTimeout = 2 * time.Second

// sweep has the snapshotter remove the directories that it has no record of: a kill or a power cut
// in the middle of making a layer leaves one, and the next layer gets its number. containerd does
// so after a collection of garbage, which may come later than the next layer.
func (s *Server) sweep(ctx context.Context) {
	if _, ok := s.cfg.Proxies[s.cfg.Snapshotter]; ok {
		return // its program does so when it starts
	}
	sn, err := part[snapshots.Snapshotter](s.parts, plugins.SnapshotPlugin.String()+"."+s.cfg.Snapshotter)
	if err != nil {
		return // it is missed when it is used, with a better error
	}
	c, ok := sn.(snapshots.Cleaner)
	if !ok {
		return
	}
	done := make(chan error, 1)
	go func() { done <- c.Cleanup(ctx) }()
	select {
	case err := <-done:
		// Without a record of any layer, in a new directory, the bucket of layers is not found.
		if err != nil && !errdefs.IsNotImplemented(err) && !errdefs.IsNotFound(err) {
			s.cfg.Logger.Warn("leftover layers not removed", "snapshotter", s.cfg.Snapshotter, "err", err)
		}
	case <-time.After(sweepTimeout):
		s.cfg.Logger.Info("removal of leftover layers is slow", "snapshotter", s.cfg.Snapshotter)
	}
}
