// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
)

// checkpointPrefixes begin the annotations of an image that holds a checkpoint of a container: the
// first ones are those that checkpointctl and containerd use, the others CRI-O's.
var checkpointPrefixes = []string{"org.criu.checkpoint.", "io.kubernetes.cri-o.annotations.checkpoint."}

// errCheckpoint stops a pull that unpacks: what is pulled holds a checkpoint.
var errCheckpoint = errors.New("it holds a checkpoint, which is not the root file system of a container")

// isCheckpoint reports whether the annotations of a manifest or an index say that the image holds a
// checkpoint.
func isCheckpoint(annotations map[string]string) bool {
	for k := range annotations {
		for _, prefix := range checkpointPrefixes {
			if strings.HasPrefix(k, prefix) {
				return true
			}
		}
	}
	return false
}

// Checkpoint returns the archive of a checkpoint, which is the layer of the manifest that is its
// ID, without the compression. What is read stays on this node until the caller closes it, also if
// the image is removed meanwhile. ErrNotFound: the layer is not on this node. ErrInvalidArgument:
// the image does not hold it as one layer.
func (rd *Reader) Checkpoint(ctx context.Context, id string) (io.ReadCloser, error) {
	ctx, done, err := rd.jobs.lease(ctx)
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
	unpacked := func() error { _ = r.Close(); return nil } // it says once more what Read has
	return &archiveReader{r, []func() error{unpacked, blob.Close}}, nil
}

// archiveReader reads the archive of a checkpoint.
type archiveReader struct {
	r       io.Reader
	closers []func() error
}

// Read reads the next bytes. What the decompression says is about the image.
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

// isCorrupt reports whether an error says that compressed data is damaged.
func isCorrupt(err error) bool {
	var deflate flate.CorruptInputError
	return errors.As(err, &deflate) || slices.ContainsFunc([]error{
		io.ErrUnexpectedEOF, gzip.ErrHeader, gzip.ErrChecksum,
		zstd.ErrMagicMismatch, zstd.ErrCRCMismatch, zstd.ErrReservedBlockType, zstd.ErrBlockTooSmall,
		zstd.ErrWindowSizeExceeded, zstd.ErrWindowSizeTooSmall, zstd.ErrUnexpectedBlockSize, zstd.ErrCompressedSizeTooBig,
	}, func(e error) bool { return errors.Is(err, e) })
}

// Close ends the reading and gives the blob back.
func (a *archiveReader) Close() error {
	var errs []error
	for _, c := range a.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
