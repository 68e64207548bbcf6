// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/unpack"
)

// imageLayers are the unpacked layers of images.
type imageLayers struct {
	*core
	names  *Names
	views  *views
	opened time.Time // an older snapshot of a pull was left by an earlier berth

	dirs layerDirs
}

const (
	// labelDurable is the label of a layer or a blob that is on the disk. Its value is the instant
	// at which that was made: another one that is made later under the same name may inherit the
	// label.
	labelDurable = "berth/durable"
	// overlay is the snapshotter whose layers are kept durable. Layers in another one are synced
	// when they are unpacked, if the containerd in this process does that.
	overlay = "overlayfs"
	// native is the other one that is built in.
	native = "native"
	// settleTimeout is how long a clean stop may take to put images onto the disk.
	settleTimeout = time.Second
)

// layerDirs remembers the directories of layers until the layers are listed again.
type layerDirs struct {
	mu sync.Mutex
	by map[durable.Item]layerDir
}

// layerDir is where a layer is.
type layerDir struct {
	dir     string
	parents []string // the directories of the layers below, the topmost first
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func layerItem(snapshotter string, info snapshots.Info) durable.Item {
	return durable.Item{Kind: durable.Layer, Snapshotter: snapshotter, ID: info.Name, Made: stamp(info.Created)}
}

func blobItem(info content.Info) durable.Item {
	return durable.Item{Kind: durable.Blob, ID: info.Digest.String(), Made: stamp(info.CreatedAt)}
}

// Unmarked lists the items without the mark: blobs, and then layers, those below first.
func (ls *imageLayers) Unmarked(ctx context.Context) ([]durable.Item, error) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(ctx), lookTimeout)
	defer cancel()
	ls.dirs.mu.Lock()
	ls.dirs.by = nil
	ls.dirs.mu.Unlock()
	var out []durable.Item
	err := ls.client.ContentStore().Walk(ctx, func(info content.Info) error {
		if i := blobItem(info); info.Labels[labelDurable] != i.Made {
			out = append(out, i)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", connection.Native(err))
	}
	if ls.cfg.Snapshotter != overlay && !slices.Contains(ls.cfg.Snapshotters, overlay) {
		return out, nil
	}
	layers := map[string]snapshots.Info{}
	if err := ls.client.SnapshotService(overlay).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted && info.Labels[labelDurable] != stamp(info.Created) {
			layers[info.Name] = info
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list layers: %w", connection.Native(err))
	}
	return append(out, lowestFirst(layers)...), nil
}

// lowestFirst puts layers into an order in which each follows those below it.
func lowestFirst(layers map[string]snapshots.Info) (out []durable.Item) {
	listed := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		var chain []snapshots.Info
		for info, ok := layers[name]; ok && !listed[info.Name]; info, ok = layers[info.Parent] {
			listed[info.Name] = true
			chain = append(chain, info)
		}
		for _, info := range slices.Backward(chain) {
			out = append(out, layerItem(overlay, info))
		}
	}
	return out
}

// Below returns a layer and those below it, the lowest first.
func (ls *imageLayers) Below(ctx context.Context, snapshotter, chainID string) ([]durable.Item, error) {
	ctx = connection.Namespaced(ctx)
	var out []durable.Item
	for at := chainID; at != ""; {
		info, err := ls.client.SnapshotService(snapshotter).Stat(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("look up layer %s: %w", at, connection.Native(err))
		}
		out = append(out, layerItem(snapshotter, info))
		at = info.Parent
	}
	slices.Reverse(out)
	return out, nil
}

// Index writes the index of a layer that has none.
func (ls *imageLayers) Index(ctx context.Context, item durable.Item) error {
	return ls.inLayer(ctx, item, unpack.WriteIndex)
}

// syncLayer is unpack.Sync but in a test.
var syncLayer = unpack.Sync

// Sync puts a layer onto the disk.
func (ls *imageLayers) Sync(ctx context.Context, item durable.Item) error {
	return ls.inLayer(ctx, item, syncLayer)
}

// inLayer calls do with the directory and the index of a layer. ErrNotFound says that the layer has
// gone.
func (ls *imageLayers) inLayer(ctx context.Context, item durable.Item, do func(ctx context.Context, dir, index string) error) error {
	at, err := ls.dirOf(ctx, item)
	if err != nil {
		return err
	}
	err = do(ctx, at.dir, unpack.IndexOf(at.dir))
	if err != nil && ls.gone(ctx, item) {
		return errdefs.ErrNotFound
	}
	return err
}

// gone reports whether a layer is not there any more.
func (ls *imageLayers) gone(ctx context.Context, item durable.Item) bool {
	info, err := ls.client.SnapshotService(item.Snapshotter).Stat(connection.Namespaced(ctx), item.ID)
	return errdefs.IsNotFound(connection.Native(err)) || err == nil && layerItem(item.Snapshotter, info) != item
}

// Mark labels a layer or a blob.
func (ls *imageLayers) Mark(ctx context.Context, item durable.Item) (err error) {
	ctx = connection.Namespaced(ctx)
	labels := map[string]string{labelDurable: item.Made}
	if item.Kind == durable.Blob {
		_, err = ls.client.ContentStore().Update(ctx, content.Info{Digest: digest.Digest(item.ID), Labels: labels}, "labels."+labelDurable)
		return connection.Native(err)
	}
	_, err = ls.client.SnapshotService(item.Snapshotter).Update(ctx, snapshots.Info{Name: item.ID, Labels: labels}, "labels."+labelDurable)
	return connection.Native(err)
}

// unmark takes the mark from a layer.
func (ls *imageLayers) unmark(ctx context.Context, item durable.Item) error {
	unmarked := snapshots.Info{Name: item.ID, Labels: map[string]string{labelDurable: ""}}
	_, err := ls.client.SnapshotService(item.Snapshotter).Update(ctx, unmarked, "labels."+labelDurable)
	return connection.Native(err)
}

// dirOf returns where a layer is. containerd says so of a view: the view is made so that containerd
// does not look at the directory of the layer, which may be lost.
func (ls *imageLayers) dirOf(ctx context.Context, item durable.Item) (layerDir, error) {
	ls.dirs.mu.Lock()
	at, ok := ls.dirs.by[item]
	ls.dirs.mu.Unlock()
	if ok {
		return at, nil
	}
	chain, err := ls.Below(ctx, item.Snapshotter, item.ID)
	if err != nil {
		return layerDir{}, err
	}
	mounts, err := ls.views.lookAt(connection.Namespaced(ctx), item)
	if err != nil {
		return layerDir{}, fmt.Errorf("find layer %s: %w", item.ID, err)
	}
	dirs, err := lowerDirs(mounts)
	if err == nil && len(dirs) != len(chain) {
		err = fmt.Errorf("%d directories of %d layers: %w", len(dirs), len(chain), errdefs.ErrInternal)
	}
	if err != nil {
		return layerDir{}, fmt.Errorf("find layer %s: %w", item.ID, err)
	}
	slices.Reverse(chain) // the topmost first, as the directories are
	ls.dirs.mu.Lock()
	defer ls.dirs.mu.Unlock()
	if ls.dirs.by == nil {
		ls.dirs.by = map[durable.Item]layerDir{}
	}
	for n, i := range chain {
		ls.dirs.by[i] = layerDir{dir: dirs[n], parents: dirs[n+1:]}
	}
	return layerDir{dir: dirs[0], parents: dirs[1:]}, nil
}

// lowerDirs returns the directories of the layers that a view is made of, the topmost first.
func lowerDirs(ms []mount.Mount) ([]string, error) {
	var dirs []string
	if len(ms) == 1 {
		switch ms[0].Type {
		case "bind":
			dirs = []string{ms[0].Source}
		case "overlay":
			dirs = strings.Split(OptionOf(ms[0].Options, "lowerdir="), ":")
		}
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || unpack.IndexOf(dir) == "" {
			return nil, fmt.Errorf("a layer in %q: %w", dir, errdefs.ErrNotImplemented)
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("layers that are mounted as %v: %w", ms, errdefs.ErrNotImplemented)
	}
	return dirs, nil
}
