// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	continuity "github.com/containerd/continuity/fs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// errNeedsParent says that a layer cannot be unpacked before the layers below it: it has a file in
// a directory that it does not have itself. That directory gets the owner, mode and attributes of
// the one below.
var errNeedsParent = errors.New("its directory is in a layer below")

// aloneUnpacker unpacks layers beside the layers below them. containerd's own differ gives a
// directory that a layer lacks mode 0755 in that case, and so takes, for example, the sticky bit
// from /tmp. aloneUnpacker fails with errNeedsParent instead. It has containerd unpack every layer
// that is not apart from those below.
type aloneUnpacker struct {
	containerd.DiffService
	layers content.Provider
}

// unpackingKey is the key of a context's value: a func() (done func()) that is called for each
// layer.
type unpackingKey struct{}

// Apply unpacks a layer.
func (u aloneUnpacker) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if unpacking, ok := ctx.Value(unpackingKey{}).(func() func()); ok {
		defer unpacking()()
	}
	dir := aloneDir(mounts)
	if dir == "" {
		return u.DiffService.Apply(ctx, desc, mounts, opts...)
	}
	var config diff.ApplyConfig // has the keys of an encrypted layer
	for _, o := range opts {
		if err := o(ctx, desc, &config); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	blob, err := u.layers.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer blob.Close()
	stream := diff.NewProcessorChain(desc.MediaType, content.NewReader(blob))
	for stream.MediaType() != ocispec.MediaTypeImageLayer {
		if stream, err = diff.GetProcessor(ctx, stream, config.ProcessorPayloads); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("layer of type %s: %w", desc.MediaType, err)
		}
	}
	defer stream.Close()
	digester := digest.Canonical.Digester()
	uncompressed := io.TeeReader(stream, digester.Hash())
	complete := completeness{root: dir, has: map[string]bool{".": true}}
	if _, err := archive.Apply(ctx, dir, uncompressed, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout), archive.WithFilter(complete.check)); err != nil {
		return ocispec.Descriptor{}, err
	}
	// What follows the end of the archive counts for the digest.
	if _, err := io.Copy(io.Discard, uncompressed); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read the end of the layer: %w", err)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digester.Digest()}, nil
}

// aloneDir returns the directory of a layer that is unpacked apart from the layers below it, or "".
// containerd's unpacker asks for that with an overlay that has no lower directory.
func aloneDir(mounts []mount.Mount) string {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return ""
	}
	if optionOf(mounts[0].Options, "lowerdir=") != "" {
		return ""
	}
	return optionOf(mounts[0].Options, "upperdir=")
}

// completeness checks that a layer has the directory of each of its files, before it.
type completeness struct {
	root string
	has  map[string]bool // directories, by their names in the archive
}

// check is called before a file is unpacked.
func (c *completeness) check(h *tar.Header) (bool, error) {
	dir := filepath.Dir(filepath.Clean(strings.TrimPrefix(h.Name, "/")))
	if c.has[dir] {
		return true, nil
	}
	path, err := continuity.RootPath(c.root, dir)
	if err != nil {
		return false, fmt.Errorf("directory of %s: %w", h.Name, err)
	}
	if st, err := os.Lstat(path); err != nil || !st.IsDir() {
		return false, fmt.Errorf("file %s: %w", h.Name, errNeedsParent)
	}
	c.has[dir] = true
	return true, nil
}
