// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/unpack"
)

const (
	// labelDurable is the label of a layer or a blob that is on the disk. Its value is the instant at
	// which that was made: another one that is made later under the same name may inherit the label.
	labelDurable = "berth/durable"
	// overlay is the snapshotter whose layers are kept durable. Layers in another one are synced when
	// they are unpacked, if the containerd in this process does that.
	overlay = "overlayfs"
	// settleTimeout is how long a clean stop may take to put images onto the disk.
	settleTimeout = time.Second
	// lookTimeout bounds one attempt to find out what lacks the mark.
	lookTimeout = time.Minute
)

// KeepDurable marks what is on the disk, and checks what is doubted after an unclean boot, until
// ctx ends. It is called once, when containerd is there.
func (i *Store) KeepDurable(ctx context.Context) error {
	if i.keeper == nil {
		return nil
	}
	return i.keeper.Run(ctx)
}

// Trust waits until nothing is doubted of a layer and of those below it: see
// [durable.Keeper.Trust].
func (i *Store) Trust(ctx context.Context, snapshotter, chainID string) error {
	if i.keeper == nil || snapshotter != overlay {
		return nil
	}
	return i.keeper.Trust(ctx, snapshotter, chainID)
}

// Doubts returns how many layers and blobs are doubted since an unclean boot.
func (i *Store) Doubts() int {
	if i.keeper == nil {
		return 0
	}
	return i.keeper.Doubts()
}

// MayHaveChanged says that there may be images that another client has made. It never blocks.
func (i *Store) MayHaveChanged() {
	if i.keeper != nil {
		i.keeper.Changed()
	}
}

// Settle notes that all images are on the disk, so that the next boot need not doubt any, and puts
// them there if that takes a moment only. It is called when berth stops and nothing is made any
// more, and only for the containerd in this process. If it cannot be told that all are there, that
// is an error, and not noted.
func (i *Store) Settle() error {
	if i.keeper == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	left, err := (durability{i}).Unmarked(ctx)
	if err != nil {
		return fmt.Errorf("find out which images are not on the disk: %w", err)
	}
	if slices.ContainsFunc(left, func(l durable.Item) bool { return l.Kind == durable.Layer }) {
		if i.root == nil {
			return fmt.Errorf("put images onto the disk: %w", errNoRoot)
		}
		if err := unpack.SyncAll(ctx, i.root); err != nil {
			return fmt.Errorf("put images onto the disk; the next boot checks those that were made last: %w", err)
		}
	}
	if err := i.cfg.Boot.Stopped(); err != nil {
		return fmt.Errorf("note that images are on the disk: %w", err)
	}
	return nil
}

// errNoRoot says that the root directory could not be opened, or that there is none.
var errNoRoot = errors.New("the directory of containerd is not open")

// openRoot opens the directory of the containerd in this process, before anything is made in it:
// what the kernel cannot write from then on is reported to Settle, even if somebody else was told
// of it.
func openRoot(dir string, log *slog.Logger) *os.File {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o700) // containerd makes it as well, later
	var f *os.File
	if err == nil {
		f, err = os.Open(dir)
	}
	if err != nil {
		log.Warn("images that are made shortly before berth stops are checked after the next boot", "err", err)
		return nil
	}
	return f
}

// making says that an image is being made, until done is called: nothing is synced meanwhile.
func (i *Store) making() (done func()) {
	if i.keeper == nil {
		return func() {}
	}
	return i.keeper.Busy()
}

// durability is the store that the keeper of marks sees.
type durability struct{ *Store }

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

// overlays reports whether any image is unpacked into overlayfs.
func (i *Store) overlays() bool {
	return i.cfg.Snapshotter == overlay || slices.Contains(i.cfg.Snapshotters, overlay)
}

// Unmarked lists what lacks the mark: blobs, and then layers, those below first.
func (d durability) Unmarked(ctx context.Context) ([]durable.Item, error) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(ctx), lookTimeout)
	defer cancel()
	d.dirs.mu.Lock()
	d.dirs.by = nil
	d.dirs.mu.Unlock()
	var out []durable.Item
	err := d.client.ContentStore().Walk(ctx, func(info content.Info) error {
		if i := blobItem(info); info.Labels[labelDurable] != i.Made {
			out = append(out, i)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", connection.Native(err))
	}
	if !d.overlays() {
		return out, nil
	}
	layers := map[string]snapshots.Info{}
	if err := d.client.SnapshotService(overlay).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
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
func (d durability) Below(ctx context.Context, snapshotter, chainID string) ([]durable.Item, error) {
	ctx = connection.Namespaced(ctx)
	var out []durable.Item
	for at := chainID; at != ""; {
		info, err := d.client.SnapshotService(snapshotter).Stat(ctx, at)
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
func (d durability) Index(ctx context.Context, item durable.Item) error {
	return d.inLayer(ctx, item, unpack.WriteIndex)
}

// syncLayer is unpack.Sync but in a test.
var syncLayer = unpack.Sync

// Sync puts a layer onto the disk.
func (d durability) Sync(ctx context.Context, item durable.Item) error {
	unlock, err := d.mending.lock(ctx, item.ID)
	if err != nil {
		return err
	}
	d.syncs.Store(item, d.remakes(item)) // not in the middle of a repair
	unlock()
	return d.inLayer(ctx, item, syncLayer)
}

// inLayer calls do with the directory and the index of a layer. ErrNotFound says that the layer has
// gone.
func (d durability) inLayer(ctx context.Context, item durable.Item, do func(ctx context.Context, dir, index string) error) error {
	at, err := d.dirOf(ctx, item)
	if err != nil {
		return err
	}
	err = do(ctx, at.dir, unpack.IndexOf(at.dir))
	if err != nil && d.gone(ctx, item) {
		return errdefs.ErrNotFound
	}
	return err
}

// remakes returns how often a layer was written again in the life of this berth.
func (d durability) remakes(item durable.Item) int {
	n, _ := d.remade.Load(item)
	times, _ := n.(int)
	return times
}

// gone reports whether a layer is not there any more.
func (d durability) gone(ctx context.Context, item durable.Item) bool {
	info, err := d.client.SnapshotService(item.Snapshotter).Stat(connection.Namespaced(ctx), item.ID)
	return errdefs.IsNotFound(connection.Native(err)) || err == nil && layerItem(item.Snapshotter, info) != item
}

// Mark labels a layer or a blob.
func (d durability) Mark(ctx context.Context, item durable.Item) (err error) {
	ctx = connection.Namespaced(ctx)
	labels := map[string]string{labelDurable: item.Made}
	if item.Kind == durable.Blob {
		_, err = d.client.ContentStore().Update(ctx, content.Info{Digest: digest.Digest(item.ID), Labels: labels}, "labels."+labelDurable)
		return connection.Native(err)
	}
	unlock, err := d.mending.lock(ctx, item.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if at, synced := d.syncs.LoadAndDelete(item); synced && at != d.remakes(item) {
		return fmt.Errorf("it was unpacked again meanwhile: %w", errdefs.ErrAborted)
	}
	_, err = d.client.SnapshotService(item.Snapshotter).Update(ctx, snapshots.Info{Name: item.ID, Labels: labels}, "labels."+labelDurable)
	return connection.Native(err)
}

// rewrote says that a layer consists of new files. The caller has taken the mark from it before,
// and holds its lock.
func (d durability) rewrote(item durable.Item) error {
	if d.keeper == nil {
		return nil
	}
	d.remade.Store(item, d.remakes(item)+1)
	defer d.keeper.Changed()
	return d.keeper.Rewritten(item)
}

// unmark takes the mark from a layer.
func (d durability) unmark(ctx context.Context, item durable.Item) error {
	unmarked := snapshots.Info{Name: item.ID, Labels: map[string]string{labelDurable: ""}}
	_, err := d.client.SnapshotService(item.Snapshotter).Update(ctx, unmarked, "labels."+labelDurable)
	return connection.Native(err)
}

// unsynced reports whether a layer may be lost from the disk though it can be read.
func (d durability) unsynced(item durable.Item) bool {
	return d.keeper != nil && d.keeper.Unsynced(item)
}

// Check compares a layer with its index, or a blob with its digest.
func (d durability) Check(ctx context.Context, item durable.Item, idle bool) (durable.Outcome, error) {
	ctx = connection.Namespaced(ctx)
	if item.Kind == durable.Blob {
		return d.checkBlob(ctx, digest.Digest(item.ID))
	}
	outcome, err := d.checkLayer(ctx, item, idle)
	if err != nil && d.gone(ctx, item) { // collected meanwhile
		return "", errdefs.ErrNotFound
	}
	return outcome, err
}

// dirOf returns where a layer is. containerd says so of a view: the view is made so that containerd
// does not look at the directory of the layer, which may be lost.
func (d durability) dirOf(ctx context.Context, item durable.Item) (layerDir, error) {
	d.dirs.mu.Lock()
	at, ok := d.dirs.by[item]
	d.dirs.mu.Unlock()
	if ok {
		return at, nil
	}
	chain, err := d.Below(ctx, item.Snapshotter, item.ID)
	if err != nil {
		return layerDir{}, err
	}
	mounts, err := d.lookAt(connection.Namespaced(ctx), item)
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
	d.dirs.mu.Lock()
	defer d.dirs.mu.Unlock()
	if d.dirs.by == nil {
		d.dirs.by = map[durable.Item]layerDir{}
	}
	for n, i := range chain {
		d.dirs.by[i] = layerDir{dir: dirs[n], parents: dirs[n+1:]}
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
			dirs = strings.Split(optionOf(ms[0].Options, "lowerdir="), ":")
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

// lookAt returns what would be mounted for a view of a layer. Nothing is mounted.
func (d durability) lookAt(ctx context.Context, item durable.Item) ([]mount.Mount, error) {
	key := d.viewKey()
	d.views.Store(key, nil)
	detached := context.WithoutCancel(ctx) // see view
	defer d.removeViewFrom(detached, item.Snapshotter, key)
	ctx, cancel := context.WithTimeout(detached, viewTimeout)
	defer cancel()
	lctx, _, err := d.client.WithLease(ctx, leases.WithID(key), leases.WithLabel(connection.LabelOwner, d.cfg.Owner), leases.WithExpiration(10*time.Minute))
	if err != nil {
		return nil, connection.Native(err)
	}
	// With the owners in a label the snapshotter does not read them from the directory.
	mounts, err := d.client.SnapshotService(item.Snapshotter).View(lctx, key, item.ID, snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:0:65536",
		snapshots.LabelSnapshotGIDMapping: "0:0:65536",
	}))
	return mounts, connection.Native(err)
}

// blobIsWhole compares a blob with its digest. A blob that cannot be read is an error.
func (d durability) blobIsWhole(ctx context.Context, dgst digest.Digest) (bool, error) {
	r, err := d.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: dgst})
	if errdefs.IsNotFound(connection.Native(err)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read blob %s: %w", dgst, connection.Native(err))
	}
	defer r.Close()
	v := dgst.Verifier()
	buf := make([]byte, 1<<20)
	for in := content.NewReader(r); ; {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		n, err := in.Read(buf)
		_, _ = v.Write(buf[:n])
		if err == io.EOF {
			return v.Verified(), nil
		}
		if err != nil {
			return false, fmt.Errorf("read blob %s: %w", dgst, connection.Native(err))
		}
	}
}
