// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// unpacker unpacks images by containerd's client.
type unpacker struct {
	*core
	names      *Names
	artifacts  *artifacts
	keys       *keys
	durability *Durability
}

// bounded returns a client on the same containerd that never reads a blob of more than maxBlob
// bytes into memory, and gives no image a name. Layers do not pass through it: they are unpacked as
// a stream.
func (u *unpacker) containerd(sink image.Sink, blobs boundedStore) *containerd.Client {
	c := u.client.Client()
	snapshotters := map[string]snapshots.Snapshotter{}
	for _, name := range append(slices.Clone(u.cfg.Snapshotters), u.cfg.Snapshotter) {
		snapshotters[name] = trusting{c.SnapshotService(name), u.durability, name}
	}
	bounded, err := containerd.New("", containerd.WithDefaultNamespace(connection.Namespace), containerd.WithServices(
		containerd.WithContentStore(blobs),
		containerd.WithImageStore(nameless{c.ImageService()}),
		containerd.WithDiffService(aloneUnpacker{c.DiffService(), c.ContentStore(), u.core, sink, blobs.arriving}),
		containerd.WithLeasesService(c.LeasesService()),
		containerd.WithNamespaceService(c.NamespaceService()),
		containerd.WithIntrospectionService(c.IntrospectionService()),
		containerd.WithSnapshotters(snapshotters),
	))
	if err != nil {
		panic(fmt.Sprintf("a client without a connection of its own: %v", err)) // an option that cannot be
	}
	return bounded
}

// nameless is an image store that gives no names: containerd's client names an image before berth
// knows that it can be used.
type nameless struct{ images.Store }

// Create returns the image, which nothing but the lease of the call keeps.
func (nameless) Create(_ context.Context, img images.Image) (images.Image, error) { return img, nil }

// trusting is a snapshotter that makes nothing on a layer that is doubted after an unclean boot:
// the directory of such a layer may be lost.
type trusting struct {
	snapshots.Snapshotter
	durability *Durability
	name       string
}

// Prepare makes a writable snapshot.
func (s trusting) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := s.trust(ctx, parent); err != nil {
		return nil, err
	}
	ms, err := s.Snapshotter.Prepare(ctx, key, parent, opts...)
	return ms, goneBelow(parent, err)
}

// View makes a snapshot to be read.
func (s trusting) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := s.trust(ctx, parent); err != nil {
		return nil, err
	}
	ms, err := s.Snapshotter.View(ctx, key, parent, opts...)
	return ms, goneBelow(parent, err)
}

// trust waits until nothing is doubted of a layer; "" is none.
func (s trusting) trust(ctx context.Context, chainID string) error {
	if chainID == "" {
		return nil
	}
	return goneBelow(chainID, s.durability.Trust(ctx, s.name, chainID))
}

// errGoneBelow: a layer was there when an image was looked at, and has gone since: it was
// lost in an unclean boot, or collected because no image had all of its layers. If the image is
// unpacked once more, it is made from its blob.
var errGoneBelow = errors.New("a layer below has gone")

func goneBelow(parent string, err error) error {
	if parent != "" && errdefs.IsNotFound(connection.Native(err)) {
		return fmt.Errorf("%w: %w", errGoneBelow, err)
	}
	return err
}

func (u *unpacker) unpack(ctx context.Context, img images.Image, snapshotter string) error {
	defer u.durability.making()()
	a, err := u.names.artifactOf(ctx, img.Target)
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", img.Name, snapshotter, err)
	}
	if a != nil {
		return u.artifacts.layOut(ctx, img.Name, a, snapshotter)
	}
	unpacked := func() error {
		return containerd.NewImage(u.containerd(unseen{}, boundedStore{Store: u.client.ContentStore(), early: u.early}), img).Unpack(ctx, snapshotter, encryption.WithUnpackConfigApplyOpts(u.keys.decrypting))
	}
	err = unpacked()
	if errors.Is(err, errGoneBelow) {
		err = unpacked()
	}
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", img.Name, snapshotter, connection.Native(err))
	}
	return nil
}

// unseen is the sink of a pull that is not looked at.
type unseen struct{}

// Received implements image.Sink.
func (unseen) Received(int) {}

// Needs implements image.Sink.
func (unseen) Needs([]image.Blob) {}

// Layer implements image.Sink.
func (unseen) Layer(image.LayerStep) {}

// Resolved implements image.Sink.
func (unseen) Resolved(context.Context, ocispec.Descriptor, image.Registry) error { return nil }
