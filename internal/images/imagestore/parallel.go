// SPDX-License-Identifier: Apache-2.0

// This file and arriving.go hold a trick whole: layers that are unpacked beside each other, and
// while they arrive. It relies on two behaviours that containerd does not promise: its unpacker
// asks for a layer that is apart from those below with one overlay mount that has no lower
// directory, and its content store writes a blob into a file, of which it notes the reference. The
// setting
// image.max_concurrent_unpacks turns it off with 1. Delete when containerd's own differ leaves a
// directory that a layer lacks as the layers below have it:
// https://github.com/containerd/containerd/pull/12332.

package imagestore

import (
	"context"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// aloneUnpacker unpacks layers beside the layers below them. containerd's own differ gives a
// directory that a layer lacks mode 0755 in that case, and so takes, for example, the sticky bit
// from /tmp. aloneUnpacker fails with unpack.ErrNeedsParent instead. It has containerd unpack every
// layer that is not apart from those below.
type aloneUnpacker struct {
	containerd.DiffService
	layers content.Provider
	of     *core
	sink   image.Sink
	// arriving are the layers that are being fetched. It may be nil.
	arriving *arriving
}

// Apply unpacks a layer. It runs in a goroutine of containerd's unpacker: a panic over the layer is
// ErrInternal.
func (u aloneUnpacker) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return image.Contain(u.of.cfg.Logger, u.of.cfg.Panicked, "layer "+desc.Digest.String(), func() (ocispec.Descriptor, error) {
		return u.apply(ctx, desc, mounts, opts...)
	})
}

func (u aloneUnpacker) apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	by := unpack.Applier{Layers: u.layers, Late: u.of.cfg.WriteLate}
	arrives := u.arriving.of(desc.Digest)
	if arrives != nil {
		// Until the layer is whole, bytes are waited for and not files.
		by.Arriving = arrives
		defer arrives.during(func() { u.sink.Layer(image.LayerBegins) }, func() { u.sink.Layer(image.LayerEnds) })()
	} else {
		u.sink.Layer(image.LayerBegins)
		defer u.sink.Layer(image.LayerEnds)
	}
	var applied ocispec.Descriptor
	var err error
	switch dir := aloneDir(mounts); {
	case dir != "":
		applied, err = by.Into(ctx, desc, unpack.Target{Dir: dir, Overlay: true, Alone: true}, opts...)
	case arrives != nil:
		applied, err = by.Apply(ctx, desc, mounts, opts...)
	default:
		applied, err = u.DiffService.Apply(ctx, desc, mounts, opts...)
	}
	return applied, arrives.blames(ctx, err)
}

// aloneDir returns the directory of a layer that is unpacked apart from the layers below it, or "".
// containerd's unpacker asks for that with an overlay that has no lower directory.
func aloneDir(mounts []mount.Mount) string {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return ""
	}
	if OptionOf(mounts[0].Options, "lowerdir=") != "" {
		return ""
	}
	return OptionOf(mounts[0].Options, "upperdir=")
}
