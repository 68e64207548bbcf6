// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
)

// artifactIn returns the artifact that a layer was made for, with all names of it; nil for a layer
// of images, and for one whose artifact has gone. An image that cannot be read has no say.
func (ns *Names) artifactIn(ctx context.Context, chainID string) (a *manifestForNode, names []images.Image, err error) {
	all, err := ns.client.ImageService().List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", connection.Native(err))
	}
	for _, img := range all {
		m, err := ns.artifactOf(ctx, img.Target)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
			return nil, nil, fmt.Errorf("read image %s: %w", img.Name, err)
		}
		if err == nil && m != nil && artifact.ChainID(m.desc.Digest) == chainID {
			a, names = m, append(names, img)
		}
	}
	return a, names, nil
}

// eachPart calls visit with a descriptor, and with everything that it consists of, as far as that
// is here and not deeper than depth.
func (ns *Names) eachPart(ctx context.Context, desc ocispec.Descriptor, depth int, visit func(ocispec.Descriptor)) error {
	visit(desc)
	if depth == 0 || !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
		return nil
	}
	children, err := images.Children(ctx, boundedStore{Store: ns.client.ContentStore()}, desc)
	if errdefs.IsNotFound(connection.Native(err)) { // of another platform
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", desc.Digest, connection.Native(err))
	}
	for _, child := range children {
		if err := ns.eachPart(ctx, child, depth-1, visit); err != nil {
			return err
		}
	}
	return nil
}

// source is a blob that a layer may be unpacked from. Several blobs can be the same layer,
// compressed in different ways, and a manifest can claim a layer for a blob that is something else.
type source struct {
	blob   ocispec.Descriptor
	diffID digest.Digest
	names  []images.Image // that have the layer as this blob
}

// imageLayers returns the layers of an image by their chain IDs, the lowest first. An artifact is
// ErrInvalidArgument.
func (ns *Names) layersOf(ctx context.Context, img images.Image) (chain []string, blobs []ocispec.Descriptor, diffIDs []digest.Digest, err error) {
	if a, err := ns.artifactOf(ctx, img.Target); err != nil || a != nil {
		return nil, nil, nil, cmp.Or(err, fmt.Errorf("%w: %w", errArtifact, errdefs.ErrInvalidArgument))
	}
	cs := ns.content()
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

// sourcesOf finds the blobs that a layer may be unpacked from, that of the oldest image first.
// ErrNotFound says that no image has the layer. An image that cannot be read has no say.
func (ns *Names) sourcesOf(ctx context.Context, chainID string) ([]source, error) {
	all, err := ns.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", connection.Native(err))
	}
	slices.SortStableFunc(all, func(a, b images.Image) int { return a.CreatedAt.Compare(b.CreatedAt) })
	var list []source
	for _, img := range all {
		chain, blobs, diffIDs, err := ns.layersOf(ctx, img)
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

// readsAs reports whether an image is read by a blob: its index, its manifest or its configuration.
func (ns *Names) readsAs(ctx context.Context, img images.Image, dgst digest.Digest) bool {
	if img.Target.Digest == dgst {
		return true
	}
	cs := ns.content()
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
