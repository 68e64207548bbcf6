// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// Reader reads the content of images, and measures the disk.
type Reader struct {
	*core
	names      *Names
	jobs       *jobs
	views      *views
	durability *Durability
	usage      sampler
}

// Contents returns the blobs and layers on the disk, and those of each image. The sizes of the
// layers of containers are those that were measured last.
func (rd *Reader) Contents(ctx context.Context) (image.Contents, error) {
	ctx = connection.Namespaced(ctx)
	c := image.Contents{
		Images:   map[string]image.Parts{},
		Layers:   map[string]image.Layer{},
		Writable: map[string]image.Layer{},
	}
	var err error
	if c.Blobs, err = rd.blobSizes(ctx); err != nil {
		return c, err
	}
	shared, err := rd.addLayers(ctx, &c)
	if err != nil {
		return c, err
	}
	all, err := rd.client.ImageService().List(ctx)
	if err != nil {
		return c, fmt.Errorf("list images: %w", connection.Native(err))
	}
	for _, img := range all {
		parts, id, err := rd.parts(ctx, img)
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		if err != nil { // it is left out of the list as well
			rd.cfg.Logger.Debug("what an image consists of cannot be read", "name", img.Name, "err", err)
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
	rd.countOnce(&c, shared)
	c.Kept, c.Coming, err = rd.jobs.keptBytes(ctx, c)
	return c, err
}

// countOnce subtracts the bytes that the layers of artifacts share with blobs from their sizes.
// shared has how much that is at most, by layer.
func (rd *Reader) countOnce(c *image.Contents, shared map[string]int64) {
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

// layers adds the snapshots of the snapshotter, and returns how many bytes of those of artifacts
// are also those of blobs. It measures the layers of images that were not measured yet: the
// snapshotter knows their sizes.
func (rd *Reader) addLayers(ctx context.Context, c *image.Contents) (shared map[string]int64, err error) {
	shared = map[string]int64{}
	sn := rd.client.SnapshotService(rd.cfg.Snapshotter)
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
	rd.usage.mu.Lock()
	defer rd.usage.mu.Unlock()
	if rd.usage.committed == nil {
		rd.usage.committed = map[string]snapshots.Usage{}
	}
	for name := range c.Layers {
		if _, known := rd.usage.committed[name]; !known {
			if stopped := measure(ctx, sn, name, rd.usage.committed); stopped {
				return nil, ctx.Err()
			}
		}
	}
	for _, set := range []struct {
		layers   map[string]image.Layer
		measured map[string]snapshots.Usage
	}{
		{c.Layers, rd.usage.committed},
		{c.Writable, rd.usage.active},
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

// parts returns the blobs and the layers of an image that are here, and the ID of the image. An
// image that cannot be read has its blobs all the same, so that nothing that it needs counts as
// free.
func (rd *Reader) parts(ctx context.Context, img images.Image) (p image.Parts, id string, err error) {
	p.Blobs = map[string]bool{}
	_, err = image.Contain(rd.cfg.Logger, rd.cfg.Panicked, img.Name, func() (struct{}, error) {
		return struct{}{}, rd.names.eachPart(ctx, img.Target, maxDepth, func(d ocispec.Descriptor) { p.Blobs[d.Digest.String()] = true })
	})
	st, readErr := rd.names.read(ctx, img)
	if readErr != nil {
		return p, "", readErr
	}
	p.ChainID = st.ChainID
	return p, st.ID, err
}

// Fetched returns how many bytes of each blob are on this node.
func (rd *Reader) Fetched(ctx context.Context, blobs []image.Blob) (map[string]int64, error) {
	ctx = connection.Namespaced(ctx)
	cs := rd.client.ContentStore()
	coming, err := cs.ListStatuses(ctx)
	if err != nil {
		return nil, connection.Native(err)
	}
	offset := map[string]int64{}
	for _, st := range coming {
		offset[blobOf(st.Ref)] = st.Offset
	}
	here := map[string]int64{}
	for _, b := range blobs {
		if n, ok := offset[b.Digest]; ok {
			here[b.Digest] = n
			continue
		}
		switch _, err := cs.Info(ctx, digest.Digest(b.Digest)); {
		case err == nil:
			here[b.Digest] = b.Size
		case !errdefs.IsNotFound(connection.Native(err)):
			return nil, connection.Native(err)
		}
	}
	return here, nil
}

// blobOf returns the digest of the blob that is being fetched under a key, which is its kind, a
// hyphen, perhaps a name and @, and its digest.
func blobOf(key string) string {
	_, key, _ = strings.Cut(key, "-")
	return key[strings.LastIndexByte(key, '@')+1:]
}
