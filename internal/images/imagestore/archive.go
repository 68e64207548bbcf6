// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// Import reads an archive and unpacks the images in it that are for this node: see forNode. They
// get their names once all of them can be used. One that is bad fails the import: then no name has
// changed, and the blobs that it read are removed again. leftOut has a sentence for each image that
// is not taken. read is called as the reading goes on.
func (p *Puller) Import(ctx context.Context, path, ref string, read func(done, total int64)) (taken []image.Stored, leftOut []string, err error) {
	defer p.durability.making()()
	begun := time.Now()
	ctx, done, err := p.jobs.lease(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	defer done()
	defer func() { p.jobs.hold(ctx, "", err) }()
	cs := p.content()
	index, err := readArchive(ctx, cs, path, read)
	if err != nil {
		return nil, nil, err
	}
	chosen, leftOut, err := choose(ctx, cs, index, ref)
	if err != nil {
		return nil, nil, err
	}
	for _, img := range chosen {
		st, err := p.take(ctx, img, begun)
		if err != nil {
			return nil, nil, fmt.Errorf("image %s: %w", img.Name, notWhole(err))
		}
		taken = append(taken, st)
	}
	return taken, leftOut, p.names.name(ctx, taken...)
}

// readArchive reads the blobs of an archive into a content store, and returns its index.
func readArchive(ctx context.Context, cs content.Store, path string, read func(done, total int64)) (index ocispec.Index, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return index, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return index, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return index, err
	}
	r, err := plain(&archiveFile{f: f, size: st.Size(), read: read})
	if err != nil {
		return index, err
	}
	defer r.Close()
	lease, _ := leases.FromContext(ctx)
	desc, err := archive.ImportIndex(ctx, unshared{cs, lease}, r)
	if err != nil {
		return index, connection.Native(err)
	}
	err = readInto(ctx, cs, desc, &index)
	return index, err
}

// archiveFile is an archive that says how much of it was read.
type archiveFile struct {
	f    *os.File
	size int64
	read func(done, total int64)
	done int64
}

// Read reads the next bytes.
func (a *archiveFile) Read(p []byte) (int, error) {
	n, err := a.f.Read(p)
	a.done += int64(n)
	a.read(a.done, a.size)
	return n, err
}

// unshared is a content store in which one call begins blobs under keys of its own. Otherwise the
// key of a blob of an archive is its path, and an import would go on where another one was cut off
// by a kill or a power cut, with bytes of another file, or bytes that the disk has lost.
type unshared struct {
	content.Store
	call string
}

// Writer begins a blob.
func (s unshared) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	return s.Store.Writer(ctx, slices.Concat(opts, []content.WriterOpt{content.WithRef(s.call + "-" + o.Ref)})...)
}

// take unpacks an image of an archive, and makes containerd keep its blobs for as long as it has a
// name, which it does not have yet.
func (p *Puller) take(ctx context.Context, img images.Image, begun time.Time) (image.Stored, error) {
	st, err := p.names.read(ctx, img)
	if err == nil {
		_, err = image.NewName(img.Name, img.Target, st.ID)
	}
	if err != nil {
		return image.Stored{}, err
	}
	isImage := st.Artifact == "" && !st.Checkpoint
	keep := images.ChildGCLabels
	if isImage && p.jobs.discards.Load() {
		keep = images.ChildGCLabelsFilterLayers
	}
	cs, platform := p.content(), platforms.Default()
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(cs), platform), platform, 1)
	err = images.Walk(ctx, images.Handlers(images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := cs.Info(ctx, d.Digest)
		if isImage && images.IsLayerType(d.MediaType) && errdefs.IsNotFound(connection.Native(err)) {
			return nil, nil // it may be unpacked already
		}
		if err == nil && info.Size != d.Size {
			err = fmt.Errorf("%s has %d bytes, and is said to have %d: %w",
				d.Digest, info.Size, d.Size, errdefs.ErrInvalidArgument)
		}
		return nil, err
	}), images.SetChildrenMappedLabels(cs, children, keep)), img.Target)
	if err != nil || st.Checkpoint {
		return st, connection.Native(err)
	}
	mended := func() error {
		if err := p.unpacker.unpack(ctx, img, p.cfg.Snapshotter); err != nil {
			return err
		}
		return p.verifier.mend(ctx, img, begun, true, unseen{})
	}
	err = mended()
	if errdefs.IsNotFound(err) { // a layer that was doubted, and is lost
		err = mended()
	}
	return st, err
}

// notWhole says of an image in an archive that a part of it is missing.
func notWhole(err error) error {
	if err = connection.Native(err); errdefs.IsNotFound(err) {
		return fmt.Errorf("a part of it is not in the archive: %s: %w", err.Error(), errdefs.ErrInvalidArgument)
	}
	return err
}

// errElsewhere says that an image is for other platforms than that of this node.
type errElsewhere struct{ platforms []string }

// Error names the platforms.
func (e errElsewhere) Error() string {
	is := strings.Join(e.platforms[:min(len(e.platforms), 8)], ", ")
	here := platforms.Format(platforms.DefaultSpec())
	return fmt.Sprintf("it is for %s, and this node is %s", cmp.Or(is, "no platform"), here)
}

// forNode says whether an image is for this node, and returns the platform that it was chosen by:
// nil for one that names none, which is for every node. Of several in an index it is the one that a
// pull takes. The platform is that in the index, or else that of the configuration. errElsewhere
// says that it is for others.
func forNode(ctx context.Context, cs content.Provider, d ocispec.Descriptor) (*ocispec.Platform, error) {
	for range maxDepth {
		if d.Platform != nil && !platforms.Default().Match(*d.Platform) {
			return nil, errElsewhere{[]string{platforms.Format(*d.Platform)}}
		}
		if !images.IsIndexType(d.MediaType) {
			break
		}
		var index ocispec.Index
		if err := readInto(ctx, cs, d, &index); err != nil {
			return nil, err
		}
		var ok bool
		if d, ok = forThisNode(index.Manifests); !ok {
			var e errElsewhere
			for _, m := range index.Manifests {
				e.platforms = append(e.platforms, platforms.Format(*m.Platform))
			}
			return nil, e
		}
	}
	if !images.IsManifestType(d.MediaType) {
		return nil, fmt.Errorf("its type is %.100q, which is none of an image: %w",
			d.MediaType, errdefs.ErrInvalidArgument)
	}
	var m ocispec.Manifest
	if err := readInto(ctx, cs, d, &m); err != nil || d.Platform != nil || !images.IsConfigType(m.Config.MediaType) {
		return d.Platform, err
	}
	var p ocispec.Platform
	if err := readInto(ctx, cs, m.Config, &p); err != nil || p.Architecture == "" {
		return nil, err
	}
	if p = platforms.Normalize(p); !platforms.Default().Match(p) {
		return nil, errElsewhere{[]string{platforms.Format(p)}}
	}
	return &p, nil
}

// choose decides which images of an archive are taken, and under which names. ref names the one
// that has no name, or else the only one that there is. leftOut says which are not taken, and why.
// ErrInvalidArgument: none can be, or several images would get one name.
func choose(ctx context.Context, cs content.Provider, index ocispec.Index, ref string) (chosen []images.Image, leftOut []string, _ error) {
	leave := func(name string, d ocispec.Descriptor, why string) {
		leftOut = append(leftOut, fmt.Sprintf("image %s: %s", cmp.Or(name, d.Digest.String()), why))
	}
	by := map[string][]ocispec.Descriptor{}   // by name, with the platforms that count
	listed := map[string]ocispec.Descriptor{} // by name and digest, as the archive has them
	var names []string
	for _, d := range index.Manifests {
		if d.Annotations[images.AnnotationManifestSubject] != "" { // it is about another image
			continue
		}
		name, unnamed := image.ArchiveName(d.Annotations)
		at, err := forNode(ctx, cs, d)
		switch {
		case errors.As(err, new(errElsewhere)):
			leave(name, d, err.Error())
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("image %s: %w", cmp.Or(name, d.Digest.String()), notWhole(err))
		case unnamed != nil && ref == "":
			leave("", d, fmt.Sprintf("%s; give it one with --ref", unnamed))
			continue
		}
		name = cmp.Or(name, ref)
		if by[name] == nil {
			names = append(names, name)
		}
		listed[name+" "+d.Digest.String()] = d
		d.Platform = at
		by[name] = append(by[name], d)
	}
	for _, name := range names {
		best, err := theOne(name, by[name])
		if err != nil {
			return nil, nil, err
		}
		for _, d := range by[name] {
			if d.Digest != best.Digest {
				leave(name, d, "another image of this name in the archive suits this node better")
			}
		}
		chosen = append(chosen, images.Image{Name: name, Target: listed[name+" "+best.Digest.String()]})
	}
	if len(chosen) == 0 {
		why := cmp.Or(strings.Join(leftOut, "; "), "it has no image")
		return nil, nil, fmt.Errorf("nothing in it can be taken: %s: %w", why, errdefs.ErrInvalidArgument)
	}
	if ref == "" || by[ref] != nil {
		return chosen, leftOut, nil
	}
	for _, img := range chosen[1:] {
		if img.Target.Digest != chosen[0].Target.Digest {
			return nil, nil, fmt.Errorf("--ref %s names an image without a name, and those in it have names: %s: %w",
				ref, strings.Join(names, ", "), errdefs.ErrInvalidArgument)
		}
	}
	only := chosen[0]
	only.Name = ref
	return append(chosen, only), leftOut, nil
}

// theOne returns the image that suits this node best of those that have one name.
func theOne(name string, all []ocispec.Descriptor) (ocispec.Descriptor, error) {
	best, _ := forThisNode(all)
	platform := platforms.Default()
	equal := slices.IndexFunc(all, func(d ocispec.Descriptor) bool {
		if d.Digest == best.Digest || d.Platform == nil && best.Platform != nil {
			return false
		}
		return d.Platform == nil || !platform.Less(*best.Platform, *d.Platform)
	})
	if equal < 0 {
		return best, nil
	}
	return best, fmt.Errorf("2 images in it would get the name %s, %s and %s: %w",
		name, best.Digest, all[equal].Digest, errdefs.ErrInvalidArgument)
}
