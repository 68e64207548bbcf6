// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
)

// errCheckpoint stops a pull that unpacks, because the image holds a checkpoint.
var errCheckpoint = errors.New("it holds a checkpoint, which is not the root file system of a container")

// Checkpoint returns the archive of a checkpoint, which is the layer of the manifest that is its
// ID, without the compression. The layer stays on this node until the caller closes the archive,
// also if the image is removed meanwhile. ErrNotFound: the layer is not on this node.
// ErrInvalidArgument: the image does not hold it as one layer.
func (rd *Reader) Checkpoint(ctx context.Context, id string) (io.ReadCloser, error) {
	ctx, done, err := rd.jobs.lease(ctx, "")
	if err != nil {
		return nil, err
	}
	r, err := rd.openCheckpoint(ctx, digest.Digest(id))
	if err != nil {
		done()
		return nil, connection.Native(err)
	}
	r.closers = append(r.closers, func() error { done(); return nil })
	return r, nil
}

func (rd *Reader) openCheckpoint(ctx context.Context, id digest.Digest) (*archiveReader, error) {
	cs := rd.content()
	var manifest ocispec.Manifest
	if err := readInto(ctx, cs, ocispec.Descriptor{Digest: id}, &manifest); err != nil {
		return nil, err
	}
	if n := len(manifest.Layers); n != 1 {
		return nil, fmt.Errorf("it has %d layers, and a checkpoint is one: add the archive to an image from scratch: %w", n, errdefs.ErrInvalidArgument)
	}
	layer := manifest.Layers[0]
	if !images.IsLayerType(layer.MediaType) || strings.HasSuffix(layer.MediaType, "+encrypted") {
		return nil, fmt.Errorf("its layer is of the type %.100q, which is not restored from: %w", layer.MediaType, errdefs.ErrInvalidArgument)
	}
	if lease, ok := leases.FromContext(ctx); ok { // while it has the blob, no collection takes it
		if err := rd.client.LeasesService().AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: layer.Digest.String(), Type: "content"}); err != nil {
			return nil, err
		}
	}
	blob, err := cs.ReaderAt(ctx, layer)
	if errdefs.IsNotFound(connection.Native(err)) {
		return nil, fmt.Errorf("its layer is not on this node; pull it again: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	r, err := plain(content.NewReader(blob))
	if err != nil {
		return nil, errors.Join(err, blob.Close())
	}
	unpacked := func() error { _ = r.Close(); return nil } // it repeats the error of Read
	return &archiveReader{r, []func() error{unpacked, blob.Close}}, nil
}

// archiveReader reads the archive of a checkpoint.
type archiveReader struct {
	r       io.Reader
	closers []func() error
}

// Read reads the next bytes. An error of the decompression is about the image.
func (a *archiveReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	switch {
	case err == nil, errors.Is(err, io.EOF):
	case isCorrupt(err):
		err = fmt.Errorf("its layer: %w: %w", err, errdefs.ErrInvalidArgument)
	default:
		err = connection.Native(err)
	}
	return n, err
}

// Close ends the reading and gives the blob back.
func (a *archiveReader) Close() error {
	var errs []error
	for _, c := range a.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
