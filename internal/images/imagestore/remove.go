// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
)

// The names beside the directory of a layer while it is unpacked again. containerd removes them
// with the layer.
const (
	remade   = "berth-new"
	replaced = "berth-old"
)

// removeLayer removes a layer that no image has, with the leftovers above it of a pull that was cut
// off.
func (ls *imageLayers) removeLayer(ctx context.Context, item durable.Item) error {
	if ls.gone(ctx, item) {
		return nil
	}
	err := ls.removeAlone(ctx, item.Snapshotter, item.ID)
	if errdefs.IsFailedPrecondition(err) {
		if err = ls.removeAbove(ctx, item.Snapshotter, item.ID); err == nil {
			err = ls.removeAlone(ctx, item.Snapshotter, item.ID)
		}
	}
	if err != nil {
		return fmt.Errorf("remove layer %s: %w", item.ID, err)
	}
	return nil
}

// removeAlone removes a snapshot. It is ErrFailedPrecondition while there is another one above it.
func (ls *imageLayers) removeAlone(ctx context.Context, snapshotter, name string) error {
	err := connection.Native(ls.client.SnapshotService(snapshotter).Remove(ctx, name))
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeAbove removes the snapshots above a layer that no image has: layers that no image has
// either, and the one that was being unpacked when the pull was cut off. One that a pull of this
// berth unpacks stays, and so does any other snapshot: the keeper asks for the layer below it again
// later.
func (ls *imageLayers) removeAbove(ctx context.Context, snapshotter, below string) error {
	var above []snapshots.Info
	err := ls.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Parent == below {
			above = append(above, info)
		}
		return nil
	})
	if err != nil {
		return connection.Native(err)
	}
	for _, info := range above {
		switch {
		case info.Kind == snapshots.KindCommitted:
			_, err := ls.names.sourcesOf(ctx, info.Name)
			if err == nil {
				return fmt.Errorf("layer %s above it belongs to an image: %w", info.Name, errdefs.ErrFailedPrecondition)
			}
			if !errdefs.IsNotFound(err) {
				return err
			}
			if err := ls.removeAbove(ctx, snapshotter, info.Name); err != nil {
				return err
			}
		case !strings.HasPrefix(info.Name, snapshots.UnpackKeyPrefix+"-") || info.Created.After(ls.opened):
			return fmt.Errorf("%s is above it: %w", info.Name, errdefs.ErrFailedPrecondition)
		}
		if err := ls.removeAlone(ctx, snapshotter, info.Name); err != nil {
			return err
		}
	}
	return nil
}

// exchange puts a directory in the place of the one that a layer has. The old directory is removed,
// unless a container may have it mounted: then it stays until the layer is removed.
func (ls *imageLayers) exchange(ctx context.Context, item durable.Item, next, dir string) (done bool, err error) {
	used, err := ls.inUse(ctx, item)
	if err != nil {
		return false, err
	}
	err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) { // the directory itself was lost
		err := os.Rename(next, dir)
		return err == nil, err
	}
	if err != nil {
		return false, fmt.Errorf("put %s in the place of %s: %w", next, dir, err)
	}
	if used {
		return true, os.Rename(next, filepath.Join(filepath.Dir(dir), fmt.Sprintf("%s-%d", replaced, time.Now().UnixNano())))
	}
	return true, nil // the caller removes it
}

// inUse reports whether a container or a view may have a layer mounted.
func (ls *imageLayers) inUse(ctx context.Context, item durable.Item) (bool, error) {
	parents, users := map[string]string{}, []string(nil)
	if err := ls.client.SnapshotService(item.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		parents[info.Name] = info.Parent
		if info.Kind != snapshots.KindCommitted {
			users = append(users, info.Name)
		}
		return nil
	}); err != nil {
		return false, fmt.Errorf("find out who uses layer %s: %w", item.ID, connection.Native(err))
	}
	for _, at := range users {
		for at != "" && at != item.ID {
			at = parents[at]
		}
		if at != "" {
			return true, nil
		}
	}
	return false, nil
}
