// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// Usage sums up the sizes of the snapshotter's snapshots. It measures until ctx ends, and takes the
// last known size of the others.
func (rd *Reader) Usage(ctx context.Context) (image.Usage, error) {
	ctx = connection.Namespaced(ctx)
	u := image.Usage{At: time.Now()}
	var err error
	if u.Path, err = rd.client.SnapshotterRoot(ctx, rd.cfg.Snapshotter); err != nil {
		return u, err
	}
	blobs, err := rd.blobSizes(ctx) // first, since the rest may take all of the time
	if err != nil {
		return u, err
	}
	for _, size := range blobs {
		u.Blobs += size
	}
	_, coming, err := rd.jobs.keptBytes(ctx, image.Contents{Blobs: blobs, Images: map[string]image.Parts{}})
	if err != nil {
		return u, err
	}
	u.Blobs += coming
	rd.jobs.bound(ctx)
	u.Images, u.Containers, err = rd.usage.round(ctx, rd.client.SnapshotService(rd.cfg.Snapshotter))
	return u, err
}

// Measured notes the size of a writable layer, and how long it took to measure it, so that
// [Store.Usage] need not walk it.
func (rd *Reader) Measured(snapshotter, key string, usage snapshots.Usage, took time.Duration) {
	if snapshotter == rd.cfg.Snapshotter {
		rd.usage.note(key, usage, max(measuredLately, measuredRest*took))
	}
}
