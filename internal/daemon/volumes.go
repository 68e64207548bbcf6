// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"berth/internal/host/cgroup"
	"berth/internal/host/podfiles"
	"berth/internal/serve/stats"
)

// openStats opens the statistics of pods.
func openStats(w wings) *stats.Service {
	return stats.New(stats.Config{
		Pods:       w.heart.core.Pods,
		Layers:     withVolumes{w.engine.ctrd, podfiles.New(w.cfg.Root, w.cfg.State).VolumeUsage},
		Shims:      w.engine.ctrd,
		Mountpoint: w.images.service.Mountpoint,
		Cgroups:    "/sys/fs/cgroup",
		Unified:    cgroup.V2(),
		Logger:     w.log.Logger,
	})
}

// withVolumes measures the data that a container has written: its layer, and the volumes of its
// image, which are directories of berth's. A kubelet knows of both by the layer alone.
type withVolumes struct {
	stats.Layers
	volumes func(ctx context.Context, id string) (bytes, inodes uint64, err error)
}

// SnapshotUsage implements stats.Layers. The key of a layer is the ID of its container.
func (w withVolumes) SnapshotUsage(ctx context.Context, snapshotter, key string) (bytes, inodes uint64, err error) {
	bytes, inodes, err = w.Layers.SnapshotUsage(ctx, snapshotter, key)
	if err != nil {
		return 0, 0, err
	}
	b, n, err := w.volumes(ctx, key)
	return bytes + b, inodes + n, err
}
