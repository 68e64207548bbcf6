// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
	"berth/internal/images/durable"
	"berth/internal/images/image"
)

const (
	// labelShared is the label of the layer that an artifact is laid out in: how many bytes of it are
	// those of its blobs, which it shares with the content store.
	labelShared = "berth/artifact.shared"
	// labelSnapshotRef begins the label of a manifest that keeps the layer from containerd's garbage
	// collector for as long as the manifest is there. The name of the snapshotter follows.
	labelSnapshotRef = "containerd.io/gc.ref.snapshot."
	// layingPrefix begins the names of layers that artifacts are being laid out in. They have a lease.
	layingPrefix = "berth-artifact-"
	// schemaVersion is that of every manifest. A configuration has none.
	schemaVersion = 2
)

// errArtifact stops a pull that unpacks: what is pulled is an artifact.
var errArtifact = errors.New("it is an artifact, which has no layers to be unpacked")

// manifestForNode is the manifest of an image for this node.
type manifestForNode struct {
	ocispec.Manifest
	desc       ocispec.Descriptor // of the manifest; the zero value where there is none
	checkpoint bool               // it, or an index that it is in, says that it holds a checkpoint
}

func (m *manifestForNode) isArtifact() bool { return m.desc.Digest != "" && artifact.Is(m.Manifest) }

// manifestOf returns the manifest of a target, which may be an index, for this node.
func manifestOf(ctx context.Context, cs content.Provider, target ocispec.Descriptor) (*manifestForNode, error) {
	m := &manifestForNode{}
	desc := target
	for range maxDepth {
		if !images.IsIndexType(desc.MediaType) {
			break
		}
		var index ocispec.Index
		if err := readInto(ctx, cs, desc, &index); err != nil {
			return nil, err
		}
		m.checkpoint = m.checkpoint || isCheckpoint(index.Annotations)
		var ok bool
		if desc, ok = forThisNode(index.Manifests); !ok {
			return m, nil
		}
	}
	if !images.IsManifestType(desc.MediaType) {
		return m, nil
	}
	if err := readInto(ctx, cs, desc, &m.Manifest); err != nil {
		return nil, err
	}
	m.desc = desc
	m.checkpoint = !m.isArtifact() && (m.checkpoint || isCheckpoint(m.Annotations))
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// check refuses an artifact or a checkpoint whose manifest does not say that it is one: it could be
// the configuration of an image as well, which has the same digest, and so the same ID.
func (m *manifestForNode) check() error {
	if m.SchemaVersion != schemaVersion && (m.checkpoint || m.isArtifact()) {
		return fmt.Errorf("manifest %s has the schemaVersion %d and not %d: %w",
			m.desc.Digest, m.SchemaVersion, schemaVersion, errdefs.ErrInvalidArgument)
	}
	return nil
}

// artifactOf returns the manifest of an artifact; nil for an image.
func (i *Store) artifactOf(ctx context.Context, target ocispec.Descriptor) (*manifestForNode, error) {
	m, err := manifestOf(ctx, i.bounded().ContentStore(), target)
	if err != nil || !m.isArtifact() {
		return nil, err
	}
	return m, nil
}

// forThisNode returns the manifest of an index that suits this node best, as containerd's client
// chooses it for a pull. One that names no platform suits every node, and comes last.
func forThisNode(all []ocispec.Descriptor) (best ocispec.Descriptor, ok bool) {
	platform := platforms.Default()
	for _, d := range all {
		switch {
		case d.Platform != nil && !platform.Match(*d.Platform):
		case !ok, best.Platform == nil && d.Platform != nil,
			best.Platform != nil && d.Platform != nil && platform.Less(*d.Platform, *best.Platform):
			best, ok = d, true
		}
	}
	return best, ok
}

// readInto reads a manifest or an index.
func readInto(ctx context.Context, cs content.Provider, desc ocispec.Descriptor, v any) error {
	b, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return connection.Native(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// parsed returns what the image service wants to know of an artifact.
func (m *manifestForNode) parsed(target ocispec.Descriptor) parsed {
	size := artifact.Size(m.Manifest) + m.desc.Size
	if target.Digest != m.desc.Digest {
		size += target.Size
	}
	return parsed{
		id:       m.desc.Digest,
		chainID:  artifact.ChainID(m.desc.Digest),
		size:     size,
		artifact: cmp.Or(artifact.Type(m.Manifest), "unknown"),
	}
}

// checkArtifact looks at a manifest that a pull has fetched, before anything else of the image is.
// An artifact that cannot be laid out is refused; one that can be ends a pull that unpacks with
// errArtifact, and a checkpoint with errCheckpoint.
func (i *Store) checkArtifact(ctx context.Context, desc ocispec.Descriptor, unpacks bool) error {
	m, err := manifestOf(ctx, i.bounded().ContentStore(), desc)
	if err != nil {
		return err
	}
	if !m.isArtifact() {
		if unpacks && m.checkpoint {
			return errCheckpoint
		}
		return nil
	}
	if _, err := artifact.Files(m.Manifest); err != nil {
		return err
	}
	if unpacks {
		return errArtifact
	}
	return nil
}

// pullArtifact fetches an artifact and lays its files out.
func (i *Store) pullArtifact(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (containerd.Image, error) {
	img, err := i.pull(ctx, ref, creds, w, fetchOnly, true)
	if err != nil {
		return nil, err
	}
	if w.Unpacking != nil {
		defer w.Unpacking()()
	}
	return img, i.unpack(ctx, img.Metadata(), i.cfg.Snapshotter)
}

// layOut lays the files of an artifact out in a layer of a snapshotter, which containerd keeps for
// as long as it has the manifest. A layer that is there is kept. ErrNotFound says that a blob is
// missing.
func (i *Store) layOut(ctx context.Context, name string, a *manifestForNode, snapshotter string) error {
	if _, leased := leases.FromContext(ctx); !leased {
		var done func()
		var err error
		if ctx, done, err = i.lease(ctx); err != nil {
			return err
		}
		defer done()
	}
	files, err := artifact.Files(a.Manifest)
	if err != nil {
		return fmt.Errorf("lay out artifact %s: %w", name, err)
	}
	chain := artifact.ChainID(a.desc.Digest)
	sn := i.client.SnapshotService(snapshotter)
	_, err = sn.Stat(ctx, chain)
	if errdefs.IsNotFound(connection.Native(err)) {
		err = i.makeLayer(ctx, sn, chain, files)
	}
	if err == nil {
		err = i.keepLayer(ctx, a.desc.Digest, snapshotter, chain)
	}
	if err != nil {
		return fmt.Errorf("lay out artifact %s in %s: %w", name, snapshotter, connection.Native(err))
	}
	return nil
}

// keepLayer ties a layer to the manifest of the artifact in it.
func (i *Store) keepLayer(ctx context.Context, manifest digest.Digest, snapshotter, chain string) error {
	label := labelSnapshotRef + snapshotter
	_, err := i.client.ContentStore().Update(ctx, content.Info{
		Digest: manifest,
		Labels: map[string]string{label: chain},
	}, "labels."+label)
	return err
}

// makeLayer makes the layer of an artifact. It is whole once it has its name.
func (i *Store) makeLayer(ctx context.Context, sn snapshots.Snapshotter, chain string, files []artifact.File) error {
	key := fmt.Sprintf("%s%d-%d-%d", layingPrefix, os.Getpid(), time.Now().UnixNano(), i.temp.Add(1))
	mounts, err := sn.Prepare(ctx, key, "")
	if err != nil {
		return err
	}
	placed, err := i.place(ctx, mounts, files)
	if err == nil {
		err = sn.Commit(ctx, chain, key, snapshots.WithLabels(map[string]string{labelShared: strconv.FormatInt(placed.Shared, 10)}))
	}
	if err == nil {
		return nil
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewTimeout)
	defer cancel()
	if rerr := sn.Remove(detached, key); rerr != nil && !errdefs.IsNotFound(connection.Native(rerr)) {
		i.cfg.Logger.Warn("the layer of an artifact that could not be laid out stays until its lease has ended", "layer", key, "err", rerr)
	}
	if errdefs.IsAlreadyExists(connection.Native(err)) { // somebody else was faster
		return nil
	}
	return err
}

// place lays files out in an empty layer. Where the snapshotter has a directory for it, it is
// written to directly: nothing can be linked across a mount.
func (i *Store) place(ctx context.Context, mounts []mount.Mount, files []artifact.File) (p artifact.Placed, err error) {
	root, err := i.client.ContentRoot(ctx)
	if err != nil {
		return p, err
	}
	from := blobs{i.client.ContentStore(), root}
	if len(mounts) == 1 && mounts[0].Type == "bind" && !slices.Contains(mounts[0].Options, "ro") {
		return artifact.Place(ctx, mounts[0].Source, files, from)
	}
	err = mount.WithTempMount(ctx, withOptions(mounts, "nodev", "nosuid", "noexec"), func(dir string) error {
		p, err = artifact.Place(ctx, dir, files, from)
		return err
	})
	return p, err
}

// artifactIn returns the artifact that a layer was made for, with all names of it; nil for a layer
// of images, and for one whose artifact has gone. An image that cannot be read has no say.
func (i *Store) artifactIn(ctx context.Context, chainID string) (a *manifestForNode, names []images.Image, err error) {
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", connection.Native(err))
	}
	for _, img := range all {
		m, err := i.artifactOf(ctx, img.Target)
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

// checkArtifactLayer compares the layer of an artifact with its blobs. If it is wrong, and that is
// asked for, it is laid out again from them, or removed with the artifact, which has these names,
// if one of them is missing.
func (d durability) checkArtifactLayer(ctx context.Context, item durable.Item, a *manifestForNode, names []images.Image, repair bool) (durable.Outcome, error) {
	at, err := d.dirOf(ctx, item)
	if err != nil {
		return "", err
	}
	files, err := artifact.Files(a.Manifest)
	if err != nil {
		return "", err
	}
	root, err := d.client.ContentRoot(ctx)
	if err != nil {
		return "", err
	}
	why := artifact.Check(ctx, at.dir, files, blobs{d.client.ContentStore(), root})
	if why == nil {
		return durable.Whole, nil
	}
	if !errors.Is(why, artifact.ErrWrong) || !repair {
		return "", why
	}
	if err := d.removeLayer(ctx, item); err != nil {
		return "", err
	}
	err = d.layOut(ctx, a.desc.Digest.String(), a, item.Snapshotter)
	if errdefs.IsNotFound(err) {
		d.cfg.Logger.Error("an artifact was lost in an unclean boot and is removed, since a blob of it is lost as well: pull it again",
			"images", namesOf(names), "reason", why)
		return durable.Removed, d.removeAll(ctx, names)
	}
	if err != nil {
		return "", err
	}
	d.cfg.Logger.Warn("the files of an artifact were wrong and are laid out again from its blobs", "images", namesOf(names), "reason", why)
	return durable.Repaired, nil
}

// blobs are the blobs of the content store as files.
type blobs struct {
	store content.Provider
	root  string // of the content store; "" if it is not known
}

// Path returns the file of a blob.
func (b blobs) Path(f artifact.File) string {
	if b.root == "" {
		return ""
	}
	return filepath.Join(b.root, "blobs", f.Blob.Digest.Algorithm().String(), f.Blob.Digest.Encoded())
}

// Open reads a blob.
func (b blobs) Open(ctx context.Context, f artifact.File) (io.ReadCloser, error) {
	r, err := b.store.ReaderAt(ctx, f.Blob)
	if err != nil {
		return nil, connection.Native(err)
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(r), r}, nil
}

// sharedBytes returns how many bytes of a layer are those of blobs.
func sharedBytes(labels map[string]string) int64 {
	n, err := strconv.ParseInt(labels[labelShared], 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}
