// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
)

// artifacts lays artifacts out in layers.
type artifacts struct {
	*core
	jobs *jobs
}

const (
	// labelShared is the label of the layer that an artifact is laid out in: how many bytes of it
	// are those of its blobs, which it shares with the content store.
	labelShared = "berth/artifact.shared"
	// labelSnapshotRef begins the label of a manifest that keeps the layer from containerd's
	// garbage collector for as long as the manifest is there. The name of the snapshotter follows.
	labelSnapshotRef = "containerd.io/gc.ref.snapshot."
	// layingPrefix begins the names of layers that artifacts are being laid out in. They have a
	// lease.
	layingPrefix = "berth-artifact-"
)

// layOut lays the files of an artifact out in a layer of a snapshotter, which containerd keeps for
// as long as it has the manifest. A layer that is there is kept. ErrNotFound says that a blob is
// missing.
func (as *artifacts) layOut(ctx context.Context, name string, a *manifestForNode, snapshotter string) error {
	if _, leased := leases.FromContext(ctx); !leased {
		var done func()
		var err error
		if ctx, done, err = as.jobs.lease(ctx, ""); err != nil {
			return err
		}
		defer done()
	}
	files, err := artifact.Files(a.Manifest)
	if err != nil {
		return fmt.Errorf("lay out artifact %s: %w", name, err)
	}
	chain := artifact.ChainID(a.desc.Digest)
	sn := as.client.SnapshotService(snapshotter)
	_, err = sn.Stat(ctx, chain)
	if errdefs.IsNotFound(connection.Native(err)) {
		err = as.makeLayer(ctx, sn, chain, files)
	}
	if err == nil {
		err = as.keepLayer(ctx, a.desc.Digest, snapshotter, chain)
	}
	if err != nil {
		return fmt.Errorf("lay out artifact %s in %s: %w", name, snapshotter, connection.Native(err))
	}
	return nil
}

// keepLayer ties a layer to the manifest of the artifact in it.
func (as *artifacts) keepLayer(ctx context.Context, manifest digest.Digest, snapshotter, chain string) error {
	label := labelSnapshotRef + snapshotter
	_, err := as.client.ContentStore().Update(ctx, content.Info{
		Digest: manifest,
		Labels: map[string]string{label: chain},
	}, "labels."+label)
	return err
}

// makeLayer makes the layer of an artifact. It is whole once it has its name.
func (as *artifacts) makeLayer(ctx context.Context, sn snapshots.Snapshotter, chain string, files []artifact.File) error {
	key := as.newKey(layingPrefix)
	mounts, err := sn.Prepare(ctx, key, "")
	if err != nil {
		return err
	}
	placed, err := as.place(ctx, mounts, files)
	if err == nil {
		err = sn.Commit(ctx, chain, key, snapshots.WithLabels(map[string]string{labelShared: strconv.FormatInt(placed.Shared, 10)}))
	}
	if err == nil {
		return nil
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewTimeout)
	defer cancel()
	if rerr := sn.Remove(detached, key); rerr != nil && !errdefs.IsNotFound(connection.Native(rerr)) {
		as.cfg.Logger.Warn("the layer of an artifact that could not be laid out stays until its lease has ended", "layer", key, "err", rerr)
	}
	if errdefs.IsAlreadyExists(connection.Native(err)) { // somebody else was faster
		return nil
	}
	return err
}

// place lays files out in an empty layer. Where the snapshotter has a directory for it, it is
// written to directly: nothing can be linked across a mount.
func (as *artifacts) place(ctx context.Context, mounts []mount.Mount, files []artifact.File) (p artifact.Placed, err error) {
	root, err := as.client.ContentRoot(ctx)
	if err != nil {
		return p, err
	}
	from := blobs{as.client.ContentStore(), root}
	if len(mounts) == 1 && mounts[0].Type == "bind" && !slices.Contains(mounts[0].Options, "ro") {
		return artifact.Place(ctx, mounts[0].Source, files, from)
	}
	err = mount.WithTempMount(ctx, WithOptions(mounts, "nodev", "nosuid", "noexec"), func(dir string) error {
		p, err = artifact.Place(ctx, dir, files, from)
		return err
	})
	return p, err
}

// blobs are the blobs of the content store as files.
type blobs struct {
	store content.Provider
	root  string // of the content store; "" if it is not known
}

// Path returns the file of a blob.
func (b blobs) Path(f artifact.File) string {
	if b.root == "" {
		return ""
	}
	return filepath.Join(b.root, "blobs", f.Blob.Digest.Algorithm().String(), f.Blob.Digest.Encoded())
}

// Open reads a blob.
func (b blobs) Open(ctx context.Context, f artifact.File) (io.ReadCloser, error) {
	r, err := b.store.ReaderAt(ctx, f.Blob)
	if err != nil {
		return nil, connection.Native(err)
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(r), r}, nil
}

// sharedBytes returns how many bytes of a layer are those of blobs.
func sharedBytes(labels map[string]string) int64 {
	n, err := strconv.ParseInt(labels[labelShared], 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}
