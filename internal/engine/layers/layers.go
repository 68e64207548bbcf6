// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	selabel "github.com/opencontainers/selinux/go-selinux/label"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
	"berth/internal/host/spec"
	"berth/internal/images/imagestore"
)

// rootLabel protects objects that carry it from containerd's garbage collector.
const rootLabel = "containerd.io/gc.root"

// Config holds the settings and ports of Layers.
type Config struct {
	Owner string // this berth's ID
	// Unsynced has writable layers of overlayfs mounted with its option volatile, where the kernel
	// knows it.
	Unsynced bool
	// Trust waits until nothing is doubted of a layer and of those below it: see
	// [imagestore.Durability.Trust]. It may be nil: nothing is ever doubted.
	Trust func(ctx context.Context, snapshotter, chainID string) error
	// Measured is called with the usage of a writable layer, each time it was measured: see
	// [imagestore.Reader.Measured]. It may be nil.
	Measured func(snapshotter, key string, usage snapshots.Usage, took time.Duration)
	Logger   *slog.Logger
}

// Layers makes and deletes the writable layers of containers, and views of images.
type Layers struct {
	client *connection.Connection
	owner  string
	// writable layers are mounted without syncs
	unsynced bool
	// nil: nothing is ever doubted
	trust func(ctx context.Context, snapshotter, chainID string) error
	// measured is Config.Measured, and may be nil.
	measured func(snapshotter, key string, usage snapshots.Usage, took time.Duration)
	log      *slog.Logger
}

// New makes the layers of a connection, which the caller closes.
func New(conn *connection.Connection, cfg Config) *Layers {
	return &Layers{
		client:   conn,
		owner:    cfg.Owner,
		unsynced: cfg.Unsynced && canLeaveUnsynced(),
		trust:    cfg.Trust,
		measured: cfg.Measured,
		log:      cfg.Logger,
	}
}

// PrepareSnapshot implements pod.Layers. It waits for the layers of the image below it while those
// are doubted after an unclean boot.
func (l *Layers) PrepareSnapshot(ctx context.Context, layer pod.Layer) error {
	if err := l.trusted(ctx, layer.Snapshotter, layer.ChainID); err != nil {
		return fmt.Errorf("prepare snapshot %s on %s: %w", layer.Key, layer.ChainID, err)
	}
	err := imagestore.MakeLayer(func() error {
		_, err := l.client.SnapshotService(layer.Snapshotter).Prepare(connection.Namespaced(ctx), layer.Key, layer.ChainID, keeping(l.owner, layer.IDs))
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare snapshot %s on %s: %w", layer.Key, layer.ChainID, connection.Native(err))
	}
	return nil
}

// trusted waits until nothing is doubted of a layer and of those below it.
func (l *Layers) trusted(ctx context.Context, snapshotter, chainID string) error {
	if l.trust == nil {
		return nil
	}
	return l.trust(ctx, snapshotter, chainID)
}

// keeping labels a snapshot, which stays until it is deleted. The snapshotter shifts the owners of
// its files if ids are not zero.
func keeping(owner string, ids spec.UserIDs) snapshots.Opt {
	labels := map[string]string{
		connection.LabelOwner: owner,
		rootLabel:             time.Now().UTC().Format(time.RFC3339),
	}
	if ids != (spec.UserIDs{}) {
		labels[snapshots.LabelSnapshotUIDMapping] = fmt.Sprintf("0:%d:%d", ids.UID, ids.UIDs)
		labels[snapshots.LabelSnapshotGIDMapping] = fmt.Sprintf("0:%d:%d", ids.GID, ids.GIDs)
	}
	return snapshots.WithLabels(labels)
}

// Unsynced reports whether writable layers are mounted without syncs.
func (l *Layers) Unsynced() bool { return l.unsynced }

// Mounts returns the mounts for a container that runs on a writable layer. label is the SELinux
// label of all its files; "" for none. With synced set, it is mounted with syncs in any case.
func (l *Layers) Mounts(ctx context.Context, snapshotter, key, label string, synced bool) ([]mount.Mount, error) {
	ms, err := l.client.SnapshotService(snapshotter).Mounts(ctx, key)
	if err == nil && l.unsynced {
		ms, err = writable(ms, synced)
	}
	return imagestore.WithOptions(ms, labelled(label)...), err
}

// DeleteSnapshot removes a writable layer.
func (l *Layers) DeleteSnapshot(ctx context.Context, snapshotter, key string) error {
	return connection.Native(l.client.SnapshotService(snapshotter).Remove(connection.Namespaced(ctx), key))
}

// DeleteLease deletes a lease that another runtime has made.
func (l *Layers) DeleteLease(ctx context.Context, id string) error {
	return connection.Native(l.client.LeasesService().Delete(connection.Namespaced(ctx), leases.Lease{ID: id}))
}

// RenewSnapshot undoes all changes in a writable layer: it is deleted and made again with the same
// parent and the same labels.
func (l *Layers) RenewSnapshot(ctx context.Context, snapshotter, key, spare string) error {
	ctx = connection.Namespaced(ctx)
	s := l.client.SnapshotService(snapshotter)
	info, err := s.Stat(ctx, key)
	if errdefs.IsNotFound(connection.Native(err)) { // cut off by a crash
		info, err = s.Stat(ctx, spare)
	}
	if err != nil {
		return fmt.Errorf("renew snapshot %s: %w", key, connection.Native(err))
	}
	labels := snapshots.WithLabels(info.Labels)
	if _, err := s.View(ctx, spare, info.Parent, labels); err != nil && !errdefs.IsAlreadyExists(connection.Native(err)) {
		return fmt.Errorf("renew snapshot %s: keep its parent: %w", key, connection.Native(err))
	}
	if err := s.Remove(ctx, key); err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return fmt.Errorf("renew snapshot %s: delete it: %w", key, connection.Native(err))
	}
	if _, err := s.Prepare(ctx, key, info.Parent, labels); err != nil {
		return fmt.Errorf("renew snapshot %s on %s: %w", key, info.Parent, connection.Native(err))
	}
	if err := s.Remove(ctx, spare); err != nil {
		return fmt.Errorf("renew snapshot %s: delete the view of its parent: %w", key, connection.Native(err))
	}
	return nil
}

// MountImage makes a view of an image and mounts it. The mount stays when this process ends. It
// returns ErrFailedPrecondition if the owners of its files cannot be shifted as v.IDs requires.
func (l *Layers) MountImage(ctx context.Context, v pod.ImageView) error {
	if err := l.trusted(ctx, v.Snapshotter, v.ChainID); err != nil {
		return fmt.Errorf("view %s of %s: %w", v.Key, v.ChainID, err)
	}
	snapshotter := l.client.SnapshotService(v.Snapshotter)
	prepare, opts := snapshotter.View, []string{"nosuid", "nodev", "ro"}
	if v.Writable {
		prepare, opts = snapshotter.Prepare, opts[:2]
	}
	ms, err := prepare(connection.Namespaced(ctx), v.Key, v.ChainID, keeping(l.owner, v.IDs))
	if err != nil {
		return fmt.Errorf("view %s of %s: %w", v.Key, v.ChainID, connection.Native(err))
	}
	ms = imagestore.WithOptions(ms, append(opts, labelled(v.Label)...)...)
	if v.IDs != (spec.UserIDs{}) {
		err = mountShifted(ms, v.Dir)
	} else {
		err = mount.All(ms, v.Dir)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", v.Key, v.Dir, err)
	}
	return nil
}

// SnapshotUsage measures a writable layer, for which its files are walked. A walk in this process
// or in another containerd's ends when ctx ends.
func (l *Layers) SnapshotUsage(ctx context.Context, snapshotter, key string) (bytes, inodes uint64, err error) {
	began := time.Now()
	u, err := l.client.SnapshotService(snapshotter).Usage(connection.Namespaced(ctx), key)
	if err != nil {
		return 0, 0, fmt.Errorf("measure snapshot %s: %w", key, connection.Native(err))
	}
	if l.measured != nil {
		l.measured(snapshotter, key, u, time.Since(began))
	}
	return uint64(max(u.Size, 0)), uint64(max(u.Inodes, 0)), nil
}

// labelled returns the option by which all files of a mount have a SELinux label; nil for no label.
func labelled(label string) []string {
	if label == "" {
		return nil
	}
	return []string{selabel.FormatMountLabel("", label)}
}
