// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/usage"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// Names are the names of containerd's images, and their targets.
type Names struct {
	*core
	parsed *image.Cache[parsed]
}

// artifactOf returns the manifest of an artifact; nil for an image.
func (ns *Names) artifactOf(ctx context.Context, target ocispec.Descriptor) (*manifestForNode, error) {
	m, err := manifestOf(ctx, ns.content(), target)
	if err != nil || !m.isArtifact() {
		return nil, err
	}
	return m, nil
}

// Labels of images that the ecosystem reads.
const (
	labelManaged = "io.cri-containerd.image"
	labelPinned  = "io.cri-containerd.pinned"
)

// managed are the labels of each name.
var managed = map[string]string{labelManaged: "managed"}

// Snapshotter returns the name of the snapshotter that images are unpacked into.
func (ns *Names) Snapshotter() string { return ns.cfg.Snapshotter }

// List reads every name. Images that are not complete are left out.
func (ns *Names) List(ctx context.Context) ([]image.Stored, error) {
	ctx = connection.Namespaced(ctx)
	all, err := ns.client.ImageService().List(ctx)
	if err != nil {
		return nil, connection.Native(err)
	}
	var out []image.Stored
	for _, img := range all {
		st, err := ns.read(ctx, img)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list images: %w", ctx.Err())
		}
		if err != nil {
			ns.cfg.Logger.Warn("image is not complete and left out", "name", img.Name, "err", err)
			continue
		}
		out = append(out, st)
	}
	return out, nil
}

// Get reads one name.
func (ns *Names) Get(ctx context.Context, name string) (image.Stored, error) {
	ctx = connection.Namespaced(ctx)
	img, err := ns.client.ImageService().Get(ctx, name)
	if err != nil {
		return image.Stored{}, connection.Native(err)
	}
	return ns.read(ctx, img)
}

func (ns *Names) read(ctx context.Context, img images.Image) (image.Stored, error) {
	p, err := ns.parse(ctx, img)
	if err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: %w", img.Name, connection.Native(err))
	}
	name, _ := image.NewName(img.Name, img.Target, p.id.String()) // a wrong one is kept as such
	return image.Stored{
		Name:    name,
		ID:      p.id.String(),
		ChainID: p.chainID,
		Size:    p.size,
		Config:  p.config,
		Pinned:  img.Labels[labelPinned] == "pinned",
		Created: img.CreatedAt,

		Checkpoint: p.checkpoint,
		Artifact:   p.artifact,
	}, nil
}

// parse reads the manifest and the configuration of an image. An image has several names, and each
// of them is read at each of its changes, so that the outcome is remembered as long as the
// configuration is there. A panic over it is ErrInternal.
func (ns *Names) parse(ctx context.Context, img images.Image) (parsed, error) {
	return image.Contain(ns.cfg.Logger, ns.cfg.Panicked, img.Name, func() (parsed, error) { return ns.parseTrusting(ctx, img) })
}

// parseTrusting is parse without protection from a panic of a parser.
func (ns *Names) parseTrusting(ctx context.Context, img images.Image) (parsed, error) {
	key := img.Target.Digest.String()
	cs := ns.content()
	if p, ok := ns.parsed.Get(key); ok {
		_, err := cs.Info(ctx, cmp.Or(p.configDigest, p.id))
		return p, err
	}
	m, err := manifestOf(ctx, cs, img.Target)
	if err != nil {
		return parsed{}, err
	}
	if m.isArtifact() {
		p := m.parsed(img.Target)
		ns.parsed.Put(key, p, len(p.artifact))
		return p, nil
	}
	manifest, err := images.Manifest(ctx, cs, img.Target, platforms.Default())
	if err != nil {
		return parsed{}, err
	}
	desc := manifest.Config
	b, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return parsed{}, fmt.Errorf("configuration: %w", err)
	}
	p, kept, err := parseConfig(b)
	if err != nil {
		return parsed{}, fmt.Errorf("configuration: %w", err)
	}
	if p.size, err = usage.CalculateImageUsage(ctx, img, cs, usage.WithManifestLimit(platforms.Default(), 1), usage.WithManifestUsage()); err != nil {
		return parsed{}, fmt.Errorf("size: %w", err)
	}
	p.id, p.configDigest = desc.Digest, desc.Digest
	if p.checkpoint = m.checkpoint; p.checkpoint {
		p.id = m.desc.Digest
	}
	ns.parsed.Put(key, p, kept)
	return p, nil
}

// name stores all names of images that can be used, and nothing else in berth names one. The names
// get the targets that were pulled or imported, even if they have others by now. The lease in ctx
// keeps the images meanwhile.
func (ns *Names) name(ctx context.Context, all ...image.Stored) error {
	store := ns.client.ImageService()
	for _, st := range all {
		for _, n := range st.NamesGiven() {
			want := images.Image{Name: n.String(), Target: n.Target(), Labels: managed}
			var err error = errdefs.ErrNotFound
			for tries := 0; errdefs.IsNotFound(err) && tries < 3; tries++ { // it may be removed meanwhile
				if _, err = store.Create(ctx, want); errdefs.IsAlreadyExists(connection.Native(err)) {
					_, err = store.Update(ctx, want, "target", "labels."+labelManaged)
				}
				err = connection.Native(err)
			}
			if err != nil {
				return fmt.Errorf("store image name %s: %w", n, err)
			}
		}
	}
	return nil
}

// Delete removes a name if it stands for the same as before, and is ErrNotFound otherwise.
// containerd collects blobs and layers that no name needs any more.
func (ns *Names) Delete(ctx context.Context, n image.Name) error {
	target := n.Target()
	return connection.Native(ns.client.ImageService().Delete(connection.Namespaced(ctx), n.String(),
		images.SynchronousDelete(), images.DeleteTarget(&target)))
}

func namesOf(imgs []images.Image) (names []string) {
	for _, img := range imgs {
		names = append(names, img.Name)
	}
	return names
}

// removeAll removes names, those that stand for the same as before.
func (ns *Names) removeAll(ctx context.Context, imgs []images.Image) error {
	for _, img := range imgs {
		n, _ := image.NewName(img.Name, img.Target, "") // a wrong one can be removed, too
		if err := ns.Delete(ctx, n); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", img.Name, err)
		}
	}
	return nil
}
