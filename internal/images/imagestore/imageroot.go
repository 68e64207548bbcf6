// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/inroot"
	"berth/internal/images/image"
)

// ReadFiles reads files of an image. Links are followed within the image only.
func (rd *Reader) ReadFiles(ctx context.Context, r image.Root, limit int64, paths ...string) ([][]byte, error) {
	out := make([][]byte, len(paths))
	err := rd.view(ctx, r, func(root string) error {
		dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open image root: %w", err)
		}
		defer unix.Close(dir)
		for n, p := range paths {
			if out[n], err = readIn(dir, p, limit); err != nil {
				return fmt.Errorf("read /%s of image: %w", p, err)
			}
		}
		return nil
	})
	return out, err
}

// readIn reads a regular file below dir; anything else is as good as absent.
func readIn(dir int, path string, limit int64) ([]byte, error) {
	f, err := inroot.OpenFile(dir, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %d bytes: %w", limit, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// view mounts an image's root for the time of f: read-only, and so that nothing in it acts on the
// host. A device node in an image is only a file to berth. When ctx ends, view returns at once,
// also if containerd hangs, and a view that is made meanwhile is removed in the background.
func (rd *Reader) view(ctx context.Context, r image.Root, f func(root string) error) error {
	r.Snapshotter = cmp.Or(r.Snapshotter, rd.cfg.Snapshotter)
	if err := rd.durability.Trust(ctx, r.Snapshotter, r.ChainID); err != nil {
		return fmt.Errorf("view image: %w", err)
	}
	key := rd.newKey(viewPrefix)
	rd.views.used.Store(key, nil)
	// Nothing interrupts these calls: the outcome of one that was interrupted is not known, and a
	// lease that containerd makes after it was deleted would stay.
	detached := connection.Namespaced(context.WithoutCancel(ctx))
	var mounts []mount.Mount
	var failed error
	made, removed := make(chan struct{}), make(chan struct{})
	used := make(chan struct{})
	go func() {
		defer close(removed)
		mounts, failed = rd.views.makeView(detached, key, r)
		close(made)
		<-used
		rd.views.removeView(detached, r.Snapshotter, key)
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
	return mount.WithReadonlyTempMount(connection.Namespaced(ctx), WithOptions(mounts, "nodev", "nosuid", "noexec"), f)
}
