// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
	"berth/internal/images/durable"
	"berth/internal/images/unpack"
)

// repairer checks doubted items, and repairs or removes wrong ones. With the layers it is the store
// of the keeper.
type repairer struct {
	*core
	names     *Names
	layers    *imageLayers
	artifacts *artifacts
	keys      *keys
	items     *durable.Items // nil: no image is ever doubted, nor repaired
}

// checkArtifactLayer compares the layer of an artifact with its blobs. If it is wrong, and that is
// asked for, it is laid out again from them, or removed with the artifact, which has these names,
// if one of them is missing.
func (rp *repairer) checkArtifactLayer(ctx context.Context, item durable.Item, a *manifestForNode, names []images.Image, repair bool) (durable.Outcome, error) {
	at, err := rp.layers.dirOf(ctx, item)
	if err != nil {
		return "", err
	}
	files, err := artifact.Files(a.Manifest)
	if err != nil {
		return "", err
	}
	root, err := rp.client.ContentRoot(ctx)
	if err != nil {
		return "", err
	}
	why := artifact.Check(ctx, at.dir, files, blobs{rp.client.ContentStore(), root})
	if why == nil {
		return durable.Whole, nil
	}
	if !errors.Is(why, artifact.ErrWrong) || !repair {
		return "", why
	}
	if err := rp.layers.removeLayer(ctx, item); err != nil {
		return "", err
	}
	err = rp.artifacts.layOut(ctx, a.desc.Digest.String(), a, item.Snapshotter)
	if errdefs.IsNotFound(err) {
		rp.cfg.Logger.Error("an artifact was lost in an unclean boot and is removed, since a blob of it is lost as well: pull it again",
			"images", namesOf(names), "reason", why)
		return durable.Removed, rp.names.removeAll(ctx, names)
	}
	if err != nil {
		return "", err
	}
	rp.cfg.Logger.Warn("the files of an artifact were wrong and are laid out again from its blobs", "images", namesOf(names), "reason", why)
	return durable.Repaired, nil
}

// Check compares a layer with its index, or a blob with its digest.
func (rp *repairer) Check(ctx context.Context, item durable.Item, idle bool) (durable.Outcome, error) {
	ctx = connection.Namespaced(ctx)
	if item.Kind == durable.Blob {
		return rp.checkBlob(ctx, digest.Digest(item.ID))
	}
	outcome, err := rp.checkLayer(ctx, item, idle)
	if err != nil && rp.layers.gone(ctx, item) { // collected meanwhile
		return "", errdefs.ErrNotFound
	}
	return outcome, err
}

// checkLayer compares a layer with its index, unpacks it again if it is wrong, and removes it with
// the images that have it if there is nothing whole to unpack.
func (rp *repairer) checkLayer(ctx context.Context, item durable.Item, idle bool) (durable.Outcome, error) {
	if a, names, err := rp.names.artifactIn(ctx, item.ID); err != nil || a != nil {
		if err != nil {
			return "", err
		}
		return rp.checkArtifactLayer(ctx, item, a, names, true)
	}
	at, err := rp.layers.dirOf(ctx, item)
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
	from, err := rp.names.sourcesOf(ctx, item.ID)
	if errdefs.IsNotFound(err) { // a leftover of a pull that was cut off
		if err := rp.layers.removeLayer(ctx, item); err != nil {
			return "", err
		}
		return durable.Removed, nil
	}
	if err != nil {
		return "", err
	}
	outcome, err := rp.remake(ctx, item, at, from, why)
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
	rp.cfg.Logger.Error("an image was lost in an unclean boot and is removed, since the blob of its layer is lost as well: pull it again",
		"images", namesOf(names), "layer", item.ID, "blob", from[0].blob.Digest, "reason", why)
	if err := rp.names.removeAll(ctx, names); err != nil {
		return "", err
	}
	if err := rp.layers.removeLayer(ctx, item); err != nil {
		return "", err
	}
	return durable.Removed, nil
}

// errNoSource: a layer cannot be made again: none of the blobs that images have for it is
// whole and is that layer.
var errNoSource = errors.New("no image has the layer as a whole blob")

// remake unpacks a layer again from the first source that gives it: see remakeFrom.
func (rp *repairer) remake(ctx context.Context, item durable.Item, at layerDir, from []source, why error) (durable.Outcome, error) {
	var errs []error
	gone := true // each of them is lost, or something else
	for _, s := range from {
		outcome, err := rp.remakeFrom(ctx, item, at, s, why)
		if err == nil || ctx.Err() != nil {
			return outcome, err
		}
		whole, asked := rp.blobIsWhole(ctx, s.blob.Digest)
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

// isContent reports whether the content of a blob made unpacking fail, and not the node.
func isContent(err error) bool {
	return errors.Is(err, errOtherLayer) || errdefs.IsInvalidArgument(err) || isCorrupt(err)
}

// errOtherLayer: a blob is not the layer that a manifest claims it to be.
var errOtherLayer = errors.New("it is another layer")

// remakeFrom unpacks a layer again, beside the one that is there, and puts it in its place unless
// the two are the same. why is the difference that was found; if it is durable.ErrNoIndex, the
// layer may be right.
func (rp *repairer) remakeFrom(ctx context.Context, item durable.Item, at layerDir, from source, why error) (outcome durable.Outcome, err error) {
	err = rp.items.Rewrite(ctx, item, func() (replaced bool, err error) {
		outcome, replaced, err = rp.replace(ctx, item, at, from, why)
		return replaced, err
	})
	return outcome, err
}

// replace is remakeFrom without the lock, and reports whether the layer consists of new files.
func (rp *repairer) replace(ctx context.Context, item durable.Item, at layerDir, from source, why error) (_ durable.Outcome, replaced bool, err error) {
	beside := filepath.Dir(at.dir)
	dir := filepath.Join(beside, remade)
	index := unpack.IndexOf(at.dir)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(beside, 0o700), os.Mkdir(dir, 0o755)); err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	if len(at.parents) > 0 { // as containerd makes it
		if err := sameOwner(at.parents[0], dir); err != nil {
			return "", false, err
		}
	}
	var cfg containerd.UnpackConfig
	if err := encryption.WithUnpackConfigApplyOpts(rp.keys.decrypting)(ctx, &cfg); err != nil {
		return "", false, err
	}
	made, err := unpack.Applier{Layers: rp.client.ContentStore(), Late: rp.cfg.WriteLate}.Into(ctx, from.blob, unpack.Target{
		Dir:     dir,
		Parents: at.parents,
		Overlay: true,
		Index:   index + ".remade",
	}, cfg.ApplyOpts...)
	if err != nil {
		return "", false, err
	}
	defer os.Remove(index + ".remade")
	if made.Digest != from.diffID {
		return "", false, fmt.Errorf("unpacked %s from %s, and not %s: %w: %w", made.Digest, from.blob.Digest, from.diffID, errOtherLayer, errdefs.ErrFailedPrecondition)
	}
	if errors.Is(why, durable.ErrNoIndex) {
		err := unpack.Check(ctx, at.dir, index+".remade", false)
		if err == nil {
			return durable.Whole, false, os.Rename(index+".remade", index)
		}
		if !errors.Is(err, durable.ErrWrong) {
			return "", false, err
		}
		why = err
	}
	// The mark is taken before, so that no sync of the old files gives it to the new ones.
	if err := rp.layers.unmark(ctx, item); err != nil {
		return "", false, err
	}
	if replaced, err = rp.layers.exchange(ctx, item, dir, at.dir); err != nil {
		return "", replaced, err
	}
	if err := os.Rename(index+".remade", index); err != nil {
		return "", true, err
	}
	rp.cfg.Logger.Warn("a layer was wrong and is unpacked again from its blob", "layer", item.ID, "images", namesOf(from.names), "reason", why)
	return durable.Repaired, true, nil
}

// sameOwner gives a directory the owner of another one.
func sameOwner(of, dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(of, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: of, Err: err}
	}
	return os.Lchown(dir, int(st.Uid), int(st.Gid))
}

// checkBlob removes a blob that is wrong, with the images that cannot be read without it.
func (rp *repairer) checkBlob(ctx context.Context, dgst digest.Digest) (durable.Outcome, error) {
	whole, err := rp.blobIsWhole(ctx, dgst)
	if err != nil {
		return "", err
	}
	if whole {
		return durable.Whole, nil
	}
	all, err := rp.client.ImageService().List(ctx)
	if err != nil {
		return "", fmt.Errorf("list images: %w", connection.Native(err))
	}
	var lost []images.Image
	for _, img := range all {
		if rp.names.readsAs(ctx, img, dgst) {
			lost = append(lost, img)
		}
	}
	rp.cfg.Logger.Error("a blob was lost in an unclean boot and is removed; images whose manifest or configuration it was are removed as well: pull them again",
		"blob", dgst, "images", namesOf(lost))
	if err := rp.names.removeAll(ctx, lost); err != nil {
		return "", err
	}
	if err := connection.Native(rp.client.ContentStore().Delete(ctx, dgst)); err != nil && !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("remove blob %s: %w", dgst, err)
	}
	return durable.Removed, rp.collect(ctx)
}
