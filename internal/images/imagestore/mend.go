// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// mend looks at the layers of an image that was pulled or imported, and that were there before, and
// repairs those that are wrong. With contents set, their files are read; otherwise each layer is
// looked at once, without that. ErrNotFound: the blob of a layer that is wrong is missing.
func (v *Verifier) mend(ctx context.Context, img images.Image, begun time.Time, contents bool, sink image.Sink) error {
	if v.items == nil || v.cfg.Snapshotter != overlay {
		return nil
	}
	chain, blobs, diffIDs, err := v.names.layersOf(ctx, img)
	if errors.Is(err, errArtifact) { // it is laid out from its blobs, and cannot be written to
		return nil
	}
	if err != nil || len(chain) == 0 {
		return err
	}
	if v.durability.Doubts() > 0 {
		if err := v.durability.Trust(ctx, overlay, chain[len(chain)-1]); err != nil {
			return err
		}
	}
	items, err := v.layers.Below(ctx, overlay, chain[len(chain)-1])
	if err != nil {
		return err
	}
	for n, item := range items {
		made, err := time.Parse(time.RFC3339Nano, item.Made)
		if err == nil && made.After(begun) {
			continue
		}
		look, wrong := v.items.Look(item)
		if !look && !contents {
			continue
		}
		from := source{blob: blobs[n], diffID: diffIDs[n], names: []images.Image{img}}
		if err := v.lookInto(ctx, item, from, contents || wrong, sink); err != nil {
			v.items.Looked(item, false)
			return fmt.Errorf("layer %s: %w", item.ID, err)
		}
		v.items.Looked(item, true)
	}
	return nil
}

// lookInto compares a layer with its index, and repairs it from the image that has it.
func (v *Verifier) lookInto(ctx context.Context, item durable.Item, from source, contents bool, sink image.Sink) error {
	at, err := v.layers.dirOf(ctx, item)
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
	if !wrong && v.items.Unsynced(item) { // it is right in memory, which proves nothing
		why = durable.ErrUnsynced
	}
	switch {
	case wrong, errors.Is(why, durable.ErrUnsynced):
	case errors.Is(why, durable.ErrNoIndex): // it has none yet
		return nil
	default:
		return why
	}
	if _, err := v.client.ContentStore().Info(ctx, from.blob.Digest); err != nil {
		if !wrong { // it can be read, and is checked after the next unclean boot
			return nil
		}
		return fmt.Errorf("it is wrong, and its blob %s: %w", from.blob.Digest, connection.Native(err))
	}
	sink.Layer(image.LayerBegins)
	defer sink.Layer(image.LayerEnds)
	_, err = v.repair(ctx, item, at, []source{from}, why)
	return err
}
