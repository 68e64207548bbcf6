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
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
)

const (
	// viewPrefix begins the names of views: of the lease and of the snapshot, which have the same.
	viewPrefix = "berth-view-"
	// viewTimeout is how long making a view, and removing it, may take when containerd hangs.
	viewTimeout = time.Minute
)

// prepareMounts sets where images are mounted to be read, and unmounts what an earlier berth had
// mounted there when it was killed. What cannot be removed stays: it is in nobody's way, because
// every mount is made in a new directory.
func prepareMounts(dir string, logger *slog.Logger) error {
	if err := mount.SetTempMountLocation(dir); err != nil {
		return fmt.Errorf("prepare mounts of images in %s: %w", dir, err)
	}
	problems, err := mount.CleanupTempMounts(unix.MNT_DETACH)
	problems = append(problems, err)
	left, err := os.ReadDir(dir)
	problems = append(problems, err)
	for _, e := range left { // empty: what was mounted there is gone
		problems = append(problems, os.Remove(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(problems...); err != nil {
		logger.Warn("what an earlier berth has mounted of images cannot be removed", "dir", dir, "err", err)
	}
	return nil
}

// view mounts an image's root for the time of f: read-only, and so that nothing in it acts on the
// host. A device node in an image is only a file to berth. When ctx ends, view returns at once,
// also while containerd hangs, and what is made meanwhile is removed in the background.
func (i *Store) view(ctx context.Context, chainID string, f func(root string) error) error {
	if err := i.Trust(ctx, i.cfg.Snapshotter, chainID); err != nil {
		return fmt.Errorf("view image: %w", err)
	}
	key := i.viewKey()
	i.views.Store(key, nil)
	// Nothing interrupts these calls: the outcome of one that was interrupted is not known, and a
	// lease that containerd makes after it was deleted would stay.
	detached := connection.Namespaced(context.WithoutCancel(ctx))
	var mounts []mount.Mount
	var failed error
	made, removed := make(chan struct{}), make(chan struct{})
	used := make(chan struct{})
	go func() {
		defer close(removed)
		mounts, failed = i.makeView(detached, key, chainID)
		close(made)
		<-used
		i.removeView(detached, key)
	}()
	defer func() {
		close(used)
		select {
		case <-removed:
		case <-ctx.Done():
		}
	}()
	select {
	case <-made:
	case <-ctx.Done():
		return fmt.Errorf("view image: %w", ctx.Err())
	}
	if failed != nil {
		return fmt.Errorf("view image: %w", failed)
	}
	return mount.WithReadonlyTempMount(connection.Namespaced(ctx), withOptions(mounts, "nodev", "nosuid", "noexec"), f)
}

// viewKey returns a new name of a view.
func (i *Store) viewKey() string {
	return fmt.Sprintf("%s%d-%d-%d", viewPrefix, os.Getpid(), time.Now().UnixNano(), i.temp.Add(1))
}

func (i *Store) makeView(ctx context.Context, key, chainID string) ([]mount.Mount, error) {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	lctx, _, err := i.client.WithLease(ctx, leases.WithID(key), leases.WithLabel(connection.LabelOwner, i.cfg.Owner), leases.WithExpiration(10*time.Minute))
	if err != nil {
		return nil, connection.Native(err)
	}
	var mounts []mount.Mount
	err = madeLayer(func() (err error) {
		mounts, err = i.client.SnapshotService(i.cfg.Snapshotter).View(lctx, key, chainID)
		return err
	})
	return mounts, err
}

func (i *Store) removeView(ctx context.Context, key string) {
	i.removeViewFrom(ctx, i.cfg.Snapshotter, key)
}

func (i *Store) removeViewFrom(ctx context.Context, snapshotter, key string) {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	defer i.views.Delete(key)
	if err := i.unviewFrom(ctx, snapshotter, key); err != nil {
		i.cfg.Logger.Warn("view of an image cannot be removed now, the next sweep does, or containerd once its lease has ended", "view", key, "err", err)
	}
}

// withOptions adds options to mounts, those that a mount has already left out.
func withOptions(ms []mount.Mount, options ...string) []mount.Mount {
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

func (i *Store) unview(ctx context.Context, key string) error {
	return i.unviewFrom(ctx, i.cfg.Snapshotter, key)
}

func (i *Store) unviewFrom(ctx context.Context, snapshotter, key string) error {
	if err := connection.Native(i.client.SnapshotService(snapshotter).Remove(ctx, key)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove view %s: %w", key, err)
	}
	return i.unlease(ctx, key)
}

// Sweep removes the views, and the leases of pulls and imports, that are not in use: an earlier
// berth made them and was killed, or containerd was when they were to be removed. The lease of a
// pull that was cut off stays for a while, so that the next pull of the same name goes on where it
// was.
func (i *Store) Sweep(ctx context.Context) error {
	ctx = connection.Namespaced(ctx)
	own := func(prefix string) string {
		return fmt.Sprintf("id~=^%s,labels.%q==%q", prefix, connection.LabelOwner, i.cfg.Owner)
	}
	gone := i.overdue()
	all, err := i.client.LeasesService().List(ctx, own(viewPrefix), own(jobPrefix))
	if err != nil {
		return fmt.Errorf("list leases of images: %w", connection.Native(err))
	}
	for _, l := range all {
		delete(gone, l.ID)
	}
	for key := range gone { // they were deleted, and only the answer was lost
		i.jobs.Delete(key)
	}
	var errs []error
	for _, l := range all {
		used, remove := &i.views, i.unview
		if strings.HasPrefix(l.ID, jobPrefix) {
			used, remove = &i.jobs, i.unleaseNow
		}
		v, known := used.Load(l.ID)
		_, kept := v.(heldLease)
		switch {
		case kept && !i.held(l.ID):
		case known:
			continue
		case l.Labels[labelPull] != "": // an earlier berth was killed in a pull, or after one that failed
			i.jobs.Store(l.ID, heldLease{l.Labels[labelPull], "berth ended", time.Now().Add(resumable)})
			continue
		}
		if err := remove(ctx, l.ID); err != nil {
			errs = append(errs, err)
			continue
		}
		used.Delete(l.ID)
	}
	i.swept.Store(true)
	i.bound(ctx)
	return errors.Join(errs...)
}
