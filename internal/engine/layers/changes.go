// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
)

// changesLease is how long containerd keeps the temporary objects of a comparison of layers if
// berth is killed before it has removed them.
const changesLease = time.Hour

// leaseTimeout is how long a call about a lease may take when containerd hangs.
const leaseTimeout = time.Minute

// leased calls f with a lease on the objects that f makes in containerd, and deletes the lease
// afterwards.
func (l *Layers) leased(ctx context.Context, layer string, f func(ctx context.Context) error) error {
	// Nothing interrupts the calls about the lease: a lease that containerd makes after it was
	// deleted would stay until it expires.
	detached, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), leaseTimeout)
	defer cancel()
	lease, err := l.client.LeasesService().Create(detached, leases.WithRandomID(), leases.WithExpiration(changesLease), leases.WithLabel(connection.LabelOwner, l.owner))
	if err != nil {
		return err
	}
	defer func() {
		detached, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), leaseTimeout)
		defer cancel()
		if err := l.client.LeasesService().Delete(detached, lease); err != nil {
			l.log.Warn("lease not deleted, it will expire", "layer", layer, "err", err)
		}
	}()
	return f(leases.WithLease(connection.Namespaced(ctx), lease.ID))
}

// WriteChanges writes the changes in a writable layer, as the tar of an image layer.
func (l *Layers) WriteChanges(ctx context.Context, snapshotter, key string, w io.Writer) error {
	err := l.leased(ctx, key, func(ctx context.Context) error { return l.writeChanges(ctx, snapshotter, key, w) })
	if err != nil {
		return fmt.Errorf("compare layer %s with its image: %w", key, connection.Native(err))
	}
	return nil
}

func (l *Layers) writeChanges(ctx context.Context, snapshotter, key string, w io.Writer) error {
	_, err := rootfs.CreateDiff(ctx, key, l.client.SnapshotService(snapshotter), changesTo{w})
	return err
}

// changesTo compares two snapshots, and writes the tar of a layer to w. containerd's own comparison
// writes it into the content store first, where a hole in a file takes as much room as anything
// else.
type changesTo struct{ w io.Writer }

// Compare writes the changes in upper.
func (c changesTo) Compare(ctx context.Context, lower, upper []mount.Mount, _ ...diff.Opt) (ocispec.Descriptor, error) {
	err := mount.WithReadonlyTempMount(ctx, lower, func(before string) error {
		return mount.WithReadonlyTempMount(ctx, upper, func(after string) error {
			return archive.WriteDiff(ctx, c.w, before, after)
		})
	})
	return ocispec.Descriptor{}, err
}

// ApplyChanges makes the changes that a tar of a layer has in a writable layer. The changes of an
// interrupted call are made again.
func (l *Layers) ApplyChanges(ctx context.Context, snapshotter, key, changes string) error {
	if err := l.leased(ctx, key, func(ctx context.Context) error { return l.applyChanges(ctx, snapshotter, key, changes) }); err != nil {
		return fmt.Errorf("apply changes to layer %s: %w", key, connection.Native(err))
	}
	return nil
}

func (l *Layers) applyChanges(ctx context.Context, snapshotter, key, changes string) error {
	f, err := os.Open(changes)
	if err != nil {
		return err
	}
	defer f.Close()
	digester := digest.Canonical.Digester()
	size, err := io.Copy(digester.Hash(), f)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(changes), err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	desc := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer,
		Digest:    digester.Digest(),
		Size:      size,
	}
	mounts, err := l.client.SnapshotService(snapshotter).Mounts(ctx, key)
	if err != nil {
		return err
	}
	ref := "restore-" + key
	// The data of an interrupted call may be of another file.
	if err := l.client.ContentStore().Abort(ctx, ref); err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return err
	}
	if err := content.WriteBlob(ctx, l.client.ContentStore(), ref, f, desc); err != nil {
		return err
	}
	_, err = l.client.DiffService().Apply(ctx, desc, mounts)
	if cerr := ctx.Err(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	return err
}
