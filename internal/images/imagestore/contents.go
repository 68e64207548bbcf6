// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// maxDepth bounds how far the indexes of an image are followed.
const maxDepth = 8

// Contents returns what is on the disk, and what images consist of. The sizes of the layers of
// containers are those that were measured last.
func (i *Store) Contents(ctx context.Context) (image.Contents, error) {
	ctx = connection.Namespaced(ctx)
	c := image.Contents{
		Images:   map[string]image.Parts{},
		Layers:   map[string]image.Layer{},
		Writable: map[string]image.Layer{},
	}
	var err error
	if c.Blobs, err = i.blobs(ctx); err != nil {
		return c, err
	}
	shared, err := i.layers(ctx, &c)
	if err != nil {
		return c, err
	}
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return c, fmt.Errorf("list images: %w", connection.Native(err))
	}
	for _, img := range all {
		parts, id, err := i.parts(ctx, img)
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		if err != nil { // it is left out of the list as well
			i.cfg.Logger.Debug("what an image consists of cannot be read", "name", img.Name, "err", err)
			c.Unread = append(c.Unread, img.Name)
		}
		had := c.Images[id]
		for d := range parts.Blobs {
			if had.Blobs == nil {
				had.Blobs = map[string]bool{}
			}
			had.Blobs[d] = true
		}
		had.ChainID = parts.ChainID
		c.Images[id] = had
	}
	i.countOnce(&c, shared)
	c.Kept, c.Coming, err = i.keptBytes(ctx, c)
	return c, err
}

// countOnce takes what the layers of artifacts share with blobs that are here from their sizes.
// shared has how much that is at most, by layer.
func (i *Store) countOnce(c *image.Contents, shared map[string]int64) {
	for _, p := range c.Images {
		l, ok := c.Layers[p.ChainID]
		if !ok || shared[p.ChainID] == 0 {
			continue
		}
		var here int64
		for d := range p.Blobs {
			here += c.Blobs[d]
		}
		l.Size = max(l.Size-min(here, shared[p.ChainID]), 0)
		c.Layers[p.ChainID] = l
		delete(shared, p.ChainID)
	}
}

// blobs returns the sizes of all blobs by their digests.
func (i *Store) blobs(ctx context.Context) (map[string]int64, error) {
	sizes := map[string]int64{}
	err := i.client.ContentStore().Walk(ctx, func(info content.Info) error {
		sizes[info.Digest.String()] = info.Size
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", connection.Native(err))
	}
	return sizes, nil
}

// layers adds the snapshots of the snapshotter, and returns how many bytes of those of artifacts
// are also those of blobs. Layers of images that were not measured yet are: the snapshotter knows
// what they use.
func (i *Store) layers(ctx context.Context, c *image.Contents) (shared map[string]int64, err error) {
	shared = map[string]int64{}
	sn := i.client.SnapshotService(i.cfg.Snapshotter)
	err = sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		l := image.Layer{Parent: info.Parent}
		if info.Kind == snapshots.KindCommitted {
			c.Layers[info.Name] = l
			if n := sharedBytes(info.Labels); n > 0 {
				shared[info.Name] = n
			}
		} else {
			c.Writable[info.Name] = l
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", connection.Native(err))
	}
	i.usage.mu.Lock()
	defer i.usage.mu.Unlock()
	if i.usage.committed == nil {
		i.usage.committed = map[string]snapshots.Usage{}
	}
	for name := range c.Layers {
		if _, known := i.usage.committed[name]; !known {
			if stopped := measure(ctx, sn, name, i.usage.committed); stopped {
				return nil, ctx.Err()
			}
		}
	}
	for _, set := range []struct {
		layers   map[string]image.Layer
		measured map[string]snapshots.Usage
	}{
		{c.Layers, i.usage.committed},
		{c.Writable, i.usage.active},
	} {
		for name, l := range set.layers {
			if u, ok := set.measured[name]; ok {
				l.Size, l.Measured = max(u.Size, 0), true
				set.layers[name] = l
			}
		}
	}
	return shared, nil
}

// parts returns what a name stands for consists of, as far as that is here, and the ID of the
// image. An image that cannot be read has its blobs all the same, so that nothing that it needs
// counts as free.
func (i *Store) parts(ctx context.Context, img images.Image) (p image.Parts, id string, err error) {
	p.Blobs = map[string]bool{}
	_, err = image.Contain(i.cfg.Logger, i.cfg.Panicked, img.Name, func() (struct{}, error) {
		return struct{}{}, i.eachPart(ctx, img.Target, maxDepth, func(d ocispec.Descriptor) { p.Blobs[d.Digest.String()] = true })
	})
	st, readErr := i.read(ctx, img)
	if readErr != nil {
		return p, "", readErr
	}
	p.ChainID = st.ChainID
	return p, st.ID, err
}

// eachPart calls visit with a descriptor, and with everything that it consists of, as far as that
// is here and not deeper than depth.
func (i *Store) eachPart(ctx context.Context, desc ocispec.Descriptor, depth int, visit func(ocispec.Descriptor)) error {
	visit(desc)
	if depth == 0 || !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
		return nil
	}
	children, err := images.Children(ctx, boundedStore{Store: i.client.ContentStore()}, desc)
	if errdefs.IsNotFound(connection.Native(err)) { // of another platform
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", desc.Digest, connection.Native(err))
	}
	for _, child := range children {
		if err := i.eachPart(ctx, child, depth-1, visit); err != nil {
			return err
		}
	}
	return nil
}
