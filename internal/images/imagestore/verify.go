// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// Verifier compares images with their digests and indexes.
type Verifier struct {
	*core
	names      *Names
	layers     *imageLayers
	items      *durable.Items // nil: no image is ever doubted
	repairer   *repairer
	durability *Durability
	unpacker   *unpacker
}

// Verify compares the blobs of an image with their digests, and its layers with their indexes, at
// low priority. If repair is set, a wrong part is repaired from the blobs on this node, or removed.
// A part that cannot be looked at is in the answer, with the reason.
func (v *Verifier) Verify(ctx context.Context, name image.Name, repair bool) ([]image.Part, error) {
	ctx = connection.Namespaced(ctx)
	img := images.Image{Name: name.String(), Target: name.Target()}
	var parts []image.Part
	blobs := []digest.Digest{img.Target.Digest}
	a, err := v.names.artifactOf(ctx, img.Target)
	if err != nil {
		return nil, fmt.Errorf("verify image %s: %w", name, err)
	}
	var chain []string
	var layers []ocispec.Descriptor
	if a != nil {
		chain, layers = []string{artifact.ChainID(a.desc.Digest)}, append([]ocispec.Descriptor{a.Config}, a.Layers...)
	} else if chain, layers, _, err = v.names.layersOf(ctx, img); err != nil {
		return nil, fmt.Errorf("verify image %s: %w", name, err)
	}
	checkpoint := false
	if p, err := v.names.parse(ctx, img); err == nil && a == nil {
		blobs, checkpoint = append(blobs, p.configDigest), p.checkpoint
	}
	for _, l := range layers {
		blobs = append(blobs, l.Digest)
	}
	for _, b := range blobs {
		p := image.Part{Kind: string(durable.Blob), ID: b.String()}
		if _, err := v.client.ContentStore().Info(ctx, b); errdefs.IsNotFound(connection.Native(err)) {
			p.Outcome = image.PartMissing
			parts = append(parts, p)
			continue
		}
		whole, err := v.blobIsWhole(ctx, b)
		switch {
		case err != nil || whole:
			p.Outcome = image.PartWhole
		case repair:
			_, err = v.repairer.checkBlob(ctx, b)
			p.Outcome = image.PartRemoved
		default:
			p.Outcome = image.PartWrong
		}
		parts = append(parts, failed(p, err))
	}
	if len(chain) == 0 || checkpoint {
		return parts, ctx.Err()
	}
	items, err := v.layers.Below(ctx, v.cfg.Snapshotter, chain[len(chain)-1])
	if errdefs.IsNotFound(err) {
		return append(parts, v.verifyPacked(ctx, img, chain[len(chain)-1], repair)), ctx.Err()
	}
	for n := range parts {
		if err == nil && parts[n].Outcome == image.PartMissing {
			parts[n].Detail = "the layers can be used without it" // discarded, or the snapshotter has them from elsewhere
		}
	}
	if err != nil || v.cfg.Snapshotter != overlay {
		return parts, cmp.Or(err, ctx.Err())
	}
	for _, item := range items {
		if a != nil {
			parts = append(parts, v.verifyArtifact(ctx, item, repair))
			continue
		}
		parts = append(parts, v.verifyLayer(ctx, item, repair))
	}
	return parts, ctx.Err()
}

// verifyPacked says of an image that is not unpacked whether it can be. That is known once it was
// unpacked, which a repair does.
func (v *Verifier) verifyPacked(ctx context.Context, img images.Image, chainID string, repair bool) image.Part {
	p := image.Part{Kind: string(durable.Layer), ID: chainID, Outcome: image.PartRepaired}
	if !repair {
		p.Outcome, p.Detail = image.PartUnknown, "it is not unpacked, and may not be whole"
	} else if err := v.unpacker.unpack(ctx, img, v.cfg.Snapshotter); err != nil {
		p.Outcome = image.PartWrong
		p.Detail = fmt.Sprintf("it cannot be unpacked, so remove the image, and pull or import it again: %s", err)
	}
	return p
}

func (v *Verifier) verifyArtifact(ctx context.Context, item durable.Item, repair bool) image.Part {
	p := image.Part{Kind: string(durable.Layer), ID: item.ID}
	a, names, err := v.names.artifactIn(ctx, item.ID)
	if err != nil || a == nil {
		return failed(p, cmp.Or(err, fmt.Errorf("no image has it any more: %w", errdefs.ErrNotFound)))
	}
	outcome, err := v.repairer.checkArtifactLayer(ctx, item, a, names, repair)
	if errors.Is(err, artifact.ErrWrong) {
		p.Outcome, p.Detail = image.PartWrong, err.Error()
		return p
	}
	p.Outcome = string(outcome)
	return failed(p, err)
}

// failed puts the reason into a part that could not be looked at, or not be repaired.
func failed(p image.Part, err error) image.Part {
	if err != nil {
		p.Outcome, p.Detail = image.PartUnknown, err.Error()
	}
	return p
}

func (v *Verifier) verifyLayer(ctx context.Context, item durable.Item, repair bool) image.Part {
	p := image.Part{Kind: string(durable.Layer), ID: item.ID, Outcome: image.PartWhole}
	at, err := v.layers.dirOf(ctx, item)
	if err != nil {
		return failed(p, err)
	}
	why := unpack.Check(ctx, at.dir, unpack.IndexOf(at.dir), true)
	wrong := errors.Is(why, durable.ErrWrong)
	if !wrong && v.items != nil && v.items.Unsynced(item) {
		why = durable.ErrUnsynced
	}
	repairable := errors.Is(why, durable.ErrNoIndex) || errors.Is(why, durable.ErrUnsynced)
	if !wrong && !(repair && repairable) {
		return failed(p, why)
	}
	if wrong {
		if v.items != nil {
			v.items.FoundWrong(item) // a pull looks at it again
		}
		p.Outcome, p.Detail = image.PartWrong, why.Error()
	}
	if !repair || v.items == nil {
		return p
	}
	from, err := v.names.sourcesOf(ctx, item.ID)
	var outcome durable.Outcome
	if err == nil {
		outcome, err = v.repair(ctx, item, at, from, why)
	}
	if err != nil {
		p.Detail = fmt.Sprintf("%s; it cannot be repaired from this node, so pull the image again: %s", p.Detail, connection.Native(err))
		return p
	}
	p.Outcome = string(outcome)
	return p
}

// repair unpacks a layer again that is not doubted. It lacks the mark until it is on the disk.
func (v *Verifier) repair(ctx context.Context, item durable.Item, at layerDir, from []source, why error) (durable.Outcome, error) {
	outcome, err := v.repairer.remake(ctx, item, at, from, why)
	if err == nil && v.cfg.Checked != nil {
		v.cfg.Checked(item, outcome)
	}
	return outcome, err
}
