// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// The names beside the directory of a layer while it is unpacked again. containerd removes them
// with the layer.
const (
	remade   = "berth-new"
	replaced = "berth-old"
)

// source is a blob that a layer may be unpacked from. Several blobs can be the same layer,
// compressed in different ways, and a manifest can claim a layer for a blob that is something else.
type source struct {
	blob   ocispec.Descriptor
	diffID digest.Digest
	names  []images.Image // that have the layer as this blob
}

// imageLayers returns the layers of an image by their chain IDs, the lowest first. An artifact is
// ErrInvalidArgument.
func (i *Store) imageLayers(ctx context.Context, img images.Image) (chain []string, blobs []ocispec.Descriptor, diffIDs []digest.Digest, err error) {
	if a, err := i.artifactOf(ctx, img.Target); err != nil || a != nil {
		return nil, nil, nil, cmp.Or(err, fmt.Errorf("%w: %w", errArtifact, errdefs.ErrInvalidArgument))
	}
	cs := i.bounded().ContentStore()
	m, err := images.Manifest(ctx, cs, img.Target, platforms.Default())
	if err != nil {
		return nil, nil, nil, connection.Native(err)
	}
	b, err := content.ReadBlob(ctx, cs, m.Config)
	if err != nil {
		return nil, nil, nil, connection.Native(err)
	}
	var o struct {
		RootFS ocispec.RootFS `json:"rootfs"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, nil, nil, fmt.Errorf("configuration: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(o.RootFS.DiffIDs) != len(m.Layers) {
		return nil, nil, nil, fmt.Errorf("%d layers and %d in the configuration: %w", len(m.Layers), len(o.RootFS.DiffIDs), errdefs.ErrInvalidArgument)
	}
	for _, c := range identity.ChainIDs(slices.Clone(o.RootFS.DiffIDs)) {
		chain = append(chain, c.String())
	}
	return chain, m.Layers, o.RootFS.DiffIDs, nil
}

// sourcesOf finds out what a layer may be unpacked from, that of the image that has been here for
// longest first. ErrNotFound says that no image has the layer. An image that cannot be read has no
// say.
func (i *Store) sourcesOf(ctx context.Context, chainID string) ([]source, error) {
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", connection.Native(err))
	}
	slices.SortStableFunc(all, func(a, b images.Image) int { return a.CreatedAt.Compare(b.CreatedAt) })
	var list []source
	for _, img := range all {
		chain, blobs, diffIDs, err := i.imageLayers(ctx, img)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			if !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
				return nil, fmt.Errorf("read image %s: %w", img.Name, err)
			}
			continue
		}
		n := slices.Index(chain, chainID)
		if n < 0 {
			continue
		}
		at := slices.IndexFunc(list, func(s source) bool { return s.blob.Digest == blobs[n].Digest })
		if at < 0 {
			at, list = len(list), append(list, source{blob: blobs[n], diffID: diffIDs[n]})
		}
		list[at].names = append(list[at].names, img)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no image has layer %s: %w", chainID, errdefs.ErrNotFound)
	}
	return list, nil
}

func namesOf(imgs []images.Image) (names []string) {
	for _, img := range imgs {
		names = append(names, img.Name)
	}
	return names
}

// removeAll removes names, those that stand for the same as before.
func (d durability) removeAll(ctx context.Context, imgs []images.Image) error {
	for _, img := range imgs {
		n, _ := image.NewName(img.Name, img.Target, "") // a wrong one can be removed, too
		if err := d.Delete(ctx, n); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", img.Name, err)
		}
	}
	return nil
}

// checkLayer compares a layer with its index, unpacks it again if it is wrong, and removes it with
// the images that have it if there is nothing whole to unpack.
func (d durability) checkLayer(ctx context.Context, item durable.Item, idle bool) (durable.Outcome, error) {
	if a, names, err := d.artifactIn(ctx, item.ID); err != nil || a != nil {
		if err != nil {
			return "", err
		}
		return d.checkArtifactLayer(ctx, item, a, names, true)
	}
	at, err := d.dirOf(ctx, item)
	if err != nil {
		return "", err
	}
	why := unpack.Check(ctx, at.dir, unpack.IndexOf(at.dir), idle)
	if why == nil {
		return durable.Whole, nil
	}
	if !errors.Is(why, durable.ErrWrong) && !errors.Is(why, durable.ErrNoIndex) {
		return "", why
	}
	from, err := d.sourcesOf(ctx, item.ID)
	if errdefs.IsNotFound(err) { // what a pull that was cut off has left
		if err := d.removeLayer(ctx, item); err != nil {
			return "", err
		}
		return durable.Removed, nil
	}
	if err != nil {
		return "", err
	}
	outcome, err := d.remake(ctx, item, at, from, why)
	if err == nil {
		return outcome, nil
	}
	if !errors.Is(err, errNoSource) {
		return "", err
	}
	var names []images.Image
	for _, s := range from {
		names = append(names, s.names...)
	}
	d.cfg.Logger.Error("an image was lost in an unclean boot and is removed, since the blob of its layer is lost as well: pull it again",
		"images", namesOf(names), "layer", item.ID, "blob", from[0].blob.Digest, "reason", why)
	if err := d.removeAll(ctx, names); err != nil {
		return "", err
	}
	if err := d.removeLayer(ctx, item); err != nil {
		return "", err
	}
	return durable.Removed, nil
}

// removeLayer removes a layer that no image has, with what a pull that was cut off has left above
// it.
func (d durability) removeLayer(ctx context.Context, item durable.Item) error {
	if d.gone(ctx, item) {
		return nil
	}
	err := d.removeAlone(ctx, item.Snapshotter, item.ID)
	if errdefs.IsFailedPrecondition(err) {
		if err = d.removeAbove(ctx, item.Snapshotter, item.ID); err == nil {
			err = d.removeAlone(ctx, item.Snapshotter, item.ID)
		}
	}
	if err != nil {
		return fmt.Errorf("remove layer %s: %w", item.ID, err)
	}
	return nil
}

// removeAlone removes a snapshot. It is ErrFailedPrecondition while there is another one above it.
func (d durability) removeAlone(ctx context.Context, snapshotter, name string) error {
	err := connection.Native(d.client.SnapshotService(snapshotter).Remove(ctx, name))
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeAbove removes what is above a layer that no image has: layers that no image has either, and
// the one that was being unpacked when the pull was cut off. One that a pull of this berth unpacks
// stays, and so does whatever else is there: the layer below it is asked about again later.
func (d durability) removeAbove(ctx context.Context, snapshotter, below string) error {
	var above []snapshots.Info
	err := d.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
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
			_, err := d.sourcesOf(ctx, info.Name)
			if err == nil {
				return fmt.Errorf("layer %s above it belongs to an image: %w", info.Name, errdefs.ErrFailedPrecondition)
			}
			if !errdefs.IsNotFound(err) {
				return err
			}
			if err := d.removeAbove(ctx, snapshotter, info.Name); err != nil {
				return err
			}
		case !strings.HasPrefix(info.Name, snapshots.UnpackKeyPrefix+"-") || info.Created.After(d.opened):
			return fmt.Errorf("%s is above it: %w", info.Name, errdefs.ErrFailedPrecondition)
		}
		if err := d.removeAlone(ctx, snapshotter, info.Name); err != nil {
			return err
		}
	}
	return nil
}

// errNoSource says that a layer cannot be made again: none of the blobs that images have for it is
// whole and is that layer.
var errNoSource = errors.New("no image has the layer as a whole blob")

// remake does what remakeFrom does, from the first source that gives the layer.
func (d durability) remake(ctx context.Context, item durable.Item, at layerDir, from []source, why error) (durable.Outcome, error) {
	var errs []error
	gone := true // each of them is lost, or something else
	for _, s := range from {
		outcome, err := d.remakeFrom(ctx, item, at, s, why)
		if err == nil || ctx.Err() != nil {
			return outcome, err
		}
		whole, asked := d.blobIsWhole(ctx, s.blob.Digest)
		if gone = gone && asked == nil && (!whole || isContent(err)); asked != nil {
			err = errors.Join(err, asked)
		}
		errs = append(errs, err)
	}
	if gone {
		errs = append(errs, errNoSource)
	}
	return "", errors.Join(errs...)
}

// isContent reports whether unpacking has failed over what is in a blob, and not over the node.
func isContent(err error) bool {
	return errors.Is(err, errOtherLayer) || errdefs.IsInvalidArgument(err) || isCorrupt(err)
}

// errOtherLayer says that a blob is not the layer that a manifest claims it to be.
var errOtherLayer = errors.New("it is another layer")

// remakeFrom unpacks a layer again, beside the one that is there, and puts it in its place unless
// the two are the same. why says what is wrong; with durable.ErrNoIndex, it is not known whether
// anything is.
func (d durability) remakeFrom(ctx context.Context, item durable.Item, at layerDir, from source, why error) (durable.Outcome, error) {
	beside := filepath.Dir(at.dir)
	dir := filepath.Join(beside, remade)
	index := unpack.IndexOf(at.dir)
	unlock, err := d.mending.lock(ctx, item.ID)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(beside, 0o700), os.Mkdir(dir, 0o755)); err != nil { //nolint:gosec // as containerd makes it
		return "", err
	}
	defer os.RemoveAll(dir)
	if len(at.parents) > 0 { // as containerd makes it
		if err := sameOwner(at.parents[0], dir); err != nil {
			return "", err
		}
	}
	var cfg containerd.UnpackConfig
	if err := encryption.WithUnpackConfigApplyOpts(d.decrypting)(ctx, &cfg); err != nil {
		return "", err
	}
	made, err := unpack.Applier{Layers: d.client.ContentStore(), Late: d.cfg.WriteLate}.Into(ctx, from.blob, unpack.Target{
		Dir:     dir,
		Parents: at.parents,
		Overlay: true,
		Index:   index + ".remade",
	}, cfg.ApplyOpts...)
	if err != nil {
		return "", err
	}
	defer os.Remove(index + ".remade")
	if made.Digest != from.diffID {
		return "", fmt.Errorf("unpacked %s from %s, and not %s: %w: %w", made.Digest, from.blob.Digest, from.diffID, errOtherLayer, errdefs.ErrFailedPrecondition)
	}
	if errors.Is(why, durable.ErrNoIndex) {
		err := unpack.Check(ctx, at.dir, index+".remade", false)
		if err == nil {
			return durable.Whole, os.Rename(index+".remade", index)
		}
		if !errors.Is(err, durable.ErrWrong) {
			return "", err
		}
		why = err
	}
	// The mark is taken under the lock, so that no sync of the old files gives it to the new ones.
	if err := d.unmark(ctx, item); err != nil {
		return "", err
	}
	if err := d.exchange(ctx, item, dir, at.dir); err != nil {
		return "", err
	}
	if err := errors.Join(d.rewrote(item), os.Rename(index+".remade", index)); err != nil {
		return "", err
	}
	d.cfg.Logger.Warn("a layer was wrong and is unpacked again from its blob", "layer", item.ID, "images", namesOf(from.names), "reason", why)
	return durable.Repaired, nil
}

// sameOwner gives a directory the owner of another one.
func sameOwner(of, dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(of, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: of, Err: err}
	}
	return os.Lchown(dir, int(st.Uid), int(st.Gid))
}

// exchange puts a directory in the place of the one that a layer has. What was there is removed,
// unless a container may have it mounted: then it stays until the layer is removed.
func (d durability) exchange(ctx context.Context, item durable.Item, next, dir string) error {
	used, err := d.inUse(ctx, item)
	if err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) { // the directory itself was lost
		return os.Rename(next, dir)
	}
	if err != nil {
		return fmt.Errorf("put %s in the place of %s: %w", next, dir, err)
	}
	if used {
		return os.Rename(next, filepath.Join(filepath.Dir(dir), fmt.Sprintf("%s-%d", replaced, time.Now().UnixNano())))
	}
	return nil // the caller removes it
}

// inUse reports whether a container or a view may have a layer mounted.
func (d durability) inUse(ctx context.Context, item durable.Item) (bool, error) {
	parents, users := map[string]string{}, []string(nil)
	if err := d.client.SnapshotService(item.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
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

// checkBlob removes a blob that is wrong, with the images that cannot be read without it.
func (d durability) checkBlob(ctx context.Context, dgst digest.Digest) (durable.Outcome, error) {
	whole, err := d.blobIsWhole(ctx, dgst)
	if err != nil {
		return "", err
	}
	if whole {
		return durable.Whole, nil
	}
	all, err := d.client.ImageService().List(ctx)
	if err != nil {
		return "", fmt.Errorf("list images: %w", connection.Native(err))
	}
	var lost []images.Image
	for _, img := range all {
		if d.readsAs(ctx, img, dgst) {
			lost = append(lost, img)
		}
	}
	d.cfg.Logger.Error("a blob was lost in an unclean boot and is removed; images whose manifest or configuration it was are removed as well: pull them again",
		"blob", dgst, "images", namesOf(lost))
	if err := d.removeAll(ctx, lost); err != nil {
		return "", err
	}
	if err := connection.Native(d.client.ContentStore().Delete(ctx, dgst)); err != nil && !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("remove blob %s: %w", dgst, err)
	}
	return durable.Removed, d.collect(ctx)
}

// readsAs reports whether an image is read by a blob: its index, its manifest or its configuration.
func (d durability) readsAs(ctx context.Context, img images.Image, dgst digest.Digest) bool {
	if img.Target.Digest == dgst {
		return true
	}
	cs := d.bounded().ContentStore()
	manifests := []ocispec.Descriptor{img.Target}
	if images.IsIndexType(img.Target.MediaType) {
		var index ocispec.Index
		if b, err := content.ReadBlob(ctx, cs, img.Target); err != nil || json.Unmarshal(b, &index) != nil {
			return false
		}
		manifests = index.Manifests
	}
	for _, m := range manifests {
		if m.Platform != nil && !platforms.Default().Match(*m.Platform) {
			continue
		}
		if m.Digest == dgst {
			return true
		}
		var manifest ocispec.Manifest
		if b, err := content.ReadBlob(ctx, cs, m); err == nil && json.Unmarshal(b, &manifest) == nil && manifest.Config.Digest == dgst {
			return true
		}
	}
	return false
}

// collect makes containerd collect its garbage now: until then it takes a blob that was removed for
// one that it has.
func (d durability) collect(ctx context.Context) error {
	lease, err := d.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute))
	if err == nil {
		err = d.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete)
	}
	return connection.Native(err)
}

// mend looks at the layers of an image that was pulled or imported, and that were there before, and
// repairs those that are wrong. With contents set, their files are read; otherwise each layer is
// looked at once, without that. ErrNotFound says that the blob of a layer that is wrong is missing.
func (i *Store) mend(ctx context.Context, img images.Image, begun time.Time, contents bool) error {
	if i.keeper == nil || i.cfg.Snapshotter != overlay {
		return nil
	}
	chain, blobs, diffIDs, err := i.imageLayers(ctx, img)
	if errors.Is(err, errArtifact) { // laid out from its blobs, and nobody can write to it
		return nil
	}
	if err != nil || len(chain) == 0 {
		return err
	}
	if i.Doubts() > 0 {
		if err := i.Trust(ctx, overlay, chain[len(chain)-1]); err != nil {
			return err
		}
	}
	d := durability{i}
	items, err := d.Below(ctx, overlay, chain[len(chain)-1])
	if err != nil {
		return err
	}
	for n, item := range items {
		made, err := time.Parse(time.RFC3339Nano, item.Made)
		if err == nil && made.After(begun) {
			continue
		}
		_, wrong := i.wrong.Load(item)
		if _, before := i.looked.LoadOrStore(item, nil); before && !contents && !wrong && !d.unsynced(item) {
			continue
		}
		from := source{blob: blobs[n], diffID: diffIDs[n], names: []images.Image{img}}
		if err := d.lookInto(ctx, item, from, contents || wrong); err != nil {
			i.looked.Delete(item)
			return fmt.Errorf("layer %s: %w", item.ID, err)
		}
		i.wrong.Delete(item)
	}
	return nil
}

// lookInto compares a layer with its index, and repairs it from the image that has it.
func (d durability) lookInto(ctx context.Context, item durable.Item, from source, contents bool) error {
	at, err := d.dirOf(ctx, item)
	if err != nil {
		return err
	}
	index := unpack.IndexOf(at.dir)
	var why error
	if contents {
		why = unpack.Check(ctx, at.dir, index, false)
	} else {
		why = durable.CheckIndex(at.dir, index, false)
	}
	wrong := errors.Is(why, durable.ErrWrong)
	if !wrong && d.unsynced(item) { // it is right in memory, which says nothing
		why = durable.ErrUnsynced
	}
	switch {
	case wrong, errors.Is(why, durable.ErrUnsynced):
	case errors.Is(why, durable.ErrNoIndex): // it has none yet
		return nil
	default:
		return why
	}
	if _, err := d.client.ContentStore().Info(ctx, from.blob.Digest); err != nil {
		if !wrong { // it can be read, and is checked after the next unclean boot
			return nil
		}
		return fmt.Errorf("it is wrong, and its blob %s: %w", from.blob.Digest, connection.Native(err))
	}
	_, err = d.repair(ctx, item, at, []source{from}, why)
	return err
}

// repair unpacks a layer again that nobody doubts. It lacks the mark until it is on the disk.
func (d durability) repair(ctx context.Context, item durable.Item, at layerDir, from []source, why error) (durable.Outcome, error) {
	outcome, err := d.remake(ctx, item, at, from, why)
	if err == nil && d.cfg.Checked != nil {
		d.cfg.Checked(item, outcome)
	}
	return outcome, err
}

// locks are locks by name. The zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the lock is given back
}

// lock takes a lock, or returns the error of ctx.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), _ error) {
	for {
		l.mu.Lock()
		held, ok := l.held[name]
		if !ok {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[name] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, name)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
