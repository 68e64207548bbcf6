// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
)

// views are the views of images that berth has made for itself.
type views struct {
	*core
	jobs *jobs
	used sync.Map // by key, those in use
}

// lookAt returns the mounts of a view of a layer, and mounts nothing.
func (vs *views) lookAt(ctx context.Context, item durable.Item) ([]mount.Mount, error) {
	key := vs.newKey(viewPrefix)
	vs.used.Store(key, nil)
	detached := context.WithoutCancel(ctx) // see view
	defer vs.removeView(detached, item.Snapshotter, key)
	ctx, cancel := context.WithTimeout(detached, viewTimeout)
	defer cancel()
	lctx, _, err := vs.client.WithLease(ctx, leases.WithID(key), leases.WithLabel(connection.LabelOwner, vs.cfg.Owner), leases.WithExpiration(10*time.Minute))
	if err != nil {
		return nil, connection.Native(err)
	}
	// With the owners in a label the snapshotter does not read them from the directory.
	mounts, err := vs.client.SnapshotService(item.Snapshotter).View(lctx, key, item.ID, snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:0:65536",
		snapshots.LabelSnapshotGIDMapping: "0:0:65536",
	}))
	return mounts, connection.Native(err)
}

const (
	// viewPrefix begins the names of views: of the lease and of the snapshot, which have the same.
	viewPrefix = "berth-view-"
	// viewTimeout is how long making a view, and removing it, may take when containerd hangs.
	viewTimeout = time.Minute
)

// prepareMounts sets where images are mounted to be read, and unmounts the leftovers of an earlier
// berth that was killed. One that cannot be removed stays, and does no harm because every mount is
// made in a new directory.
func prepareMounts(dir string, logger *slog.Logger) error {
	if err := mount.SetTempMountLocation(dir); err != nil {
		return fmt.Errorf("prepare mounts of images in %s: %w", dir, err)
	}
	problems, err := mount.CleanupTempMounts(unix.MNT_DETACH)
	problems = append(problems, err)
	left, err := os.ReadDir(dir)
	problems = append(problems, err)
	for _, e := range left { // empty: it was unmounted
		problems = append(problems, os.Remove(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(problems...); err != nil {
		logger.Warn("what an earlier berth has mounted of images cannot be removed", "dir", dir, "err", err)
	}
	return nil
}

func (vs *views) makeView(ctx context.Context, key string, r image.Root) ([]mount.Mount, error) {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	lctx, _, err := vs.client.WithLease(ctx, leases.WithID(key), leases.WithLabel(connection.LabelOwner, vs.cfg.Owner), leases.WithExpiration(10*time.Minute))
	if err != nil {
		return nil, connection.Native(err)
	}
	var mounts []mount.Mount
	err = MakeLayer(func() (err error) {
		mounts, err = vs.client.SnapshotService(r.Snapshotter).View(lctx, key, r.ChainID)
		return err
	})
	return mounts, err
}

func (vs *views) removeView(ctx context.Context, snapshotter, key string) {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	defer vs.used.Delete(key)
	if err := vs.unview(ctx, snapshotter, key); err != nil {
		vs.cfg.Logger.Warn("view of an image cannot be removed now, the next sweep does, or containerd once its lease has ended", "view", key, "err", err)
	}
}

// MakeLayer calls containerd to make a layer, and once more where it fails without a reason that
// has a class. If a kill or a power cut has left a layer with the same number, the first call
// fails, and containerd removes the leftover. The one inside berth has removed it before, see
// embed.
func MakeLayer(call func() error) error {
	err := connection.Native(call())
	if err == nil || !errdefs.IsUnknown(errdefs.Resolve(err)) {
		return err
	}
	if call() == nil {
		return nil
	}
	return err
}

// WithOptions adds options to mounts, those that a mount has already left out.
func WithOptions(ms []mount.Mount, options ...string) []mount.Mount {
	out := slices.Clone(ms)
	for n := range out {
		out[n].Options = slices.Clone(out[n].Options)
		for _, o := range options {
			if !slices.Contains(out[n].Options, o) {
				out[n].Options = append(out[n].Options, o)
			}
		}
	}
	return out
}

func (vs *views) unview(ctx context.Context, snapshotter, key string) error {
	if err := connection.Native(vs.client.SnapshotService(snapshotter).Remove(ctx, key)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove view %s: %w", key, err)
	}
	return vs.jobs.unlease(ctx, key)
}

// Sweep removes the views, and the leases of pulls and imports, that are not in use: an earlier
// berth made them and was killed, or containerd was when they were to be removed. The lease of a
// pull that was cut off stays for a while, so that the next pull of the same name goes on where it
// was.
func (vs *views) Sweep(ctx context.Context) error {
	ctx = connection.Namespaced(ctx)
	own := func(prefix string) string {
		return fmt.Sprintf("id~=^%s,labels.%q==%q", prefix, connection.LabelOwner, vs.cfg.Owner)
	}
	gone := vs.jobs.overdue()
	all, err := vs.client.LeasesService().List(ctx, own(viewPrefix), own(jobPrefix))
	if err != nil {
		return fmt.Errorf("list leases of images: %w", connection.Native(err))
	}
	for _, l := range all {
		delete(gone, l.ID)
	}
	for key := range gone { // they were deleted, and only the answer was lost
		vs.jobs.byKey.Delete(key)
	}
	var errs []error
	for _, l := range all {
		used, remove := &vs.used, func() error { return vs.unview(ctx, vs.cfg.Snapshotter, l.ID) }
		if strings.HasPrefix(l.ID, jobPrefix) {
			used, remove = &vs.jobs.byKey, func() error { return vs.jobs.unlease(ctx, l.ID, leases.SynchronousDelete) }
		}
		v, known := used.Load(l.ID)
		_, kept := v.(heldLease)
		switch {
		case kept && !vs.jobs.held(l.ID):
		case known:
			continue
		case l.Labels[labelPull] != "": // an earlier berth was killed in a pull, or after one that failed
			vs.jobs.byKey.Store(l.ID, heldLease{l.Labels[labelPull], "berth ended", time.Now().Add(resumable)})
			continue
		}
		if err := remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		used.Delete(l.ID)
	}
	vs.jobs.swept.Store(true)
	vs.jobs.bound(ctx)
	return errors.Join(errs...)
}

// OptionOf returns the rest of the option with a prefix; "" if none has it.
func OptionOf(options []string, prefix string) string {
	for _, o := range options {
		if v, ok := strings.CutPrefix(o, prefix); ok {
			return v
		}
	}
	return ""
}
