// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxWindow is how many bytes a layer may make zstd remember. zstd itself accepts as much unless it
// is asked for more, and its highest level uses as much.
const maxWindow = 128 << 20

// decompressing handles layers that are compressed.
func decompressing(ctx context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	how, err := images.DiffCompression(ctx, mediaType)
	return decompress, err == nil && how != ""
}

// decompress makes the stream processor of a layer that is compressed. The first bytes of the layer
// decide how, and not its media type, as in containerd.
func decompress(_ context.Context, stream diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
	in := bufio.NewReader(stream)
	magic, err := in.Peek(8)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if compression.DetectCompression(magic) != compression.Zstd {
		plain, err := compression.DecompressStream(in)
		if err != nil {
			return nil, err
		}
		return &decompressed{stream, plain}, nil
	}
	d, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return &decompressed{stream, zstdReader{d}}, nil
}

// zstdReader decompresses zstd.
type zstdReader struct{ d *zstd.Decoder }

// Read reads plain bytes. ErrResourceExhausted says that the window is too large.
func (z zstdReader) Read(p []byte) (int, error) {
	n, err := z.d.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = fmt.Errorf("it is compressed by zstd with a window of more than %d MiB; compress it with a smaller one: %w", maxWindow>>20, errdefs.ErrResourceExhausted)
	}
	return n, err
}

// Close frees the memory.
func (z zstdReader) Close() error {
	z.d.Close()
	return nil
}

// decompressed is a layer as it was before it was compressed.
type decompressed struct {
	stream diff.StreamProcessor
	plain  io.ReadCloser
}

// Read reads plain bytes.
func (d *decompressed) Read(p []byte) (int, error) { return d.plain.Read(p) }

// MediaType returns that of the plain layer.
func (d *decompressed) MediaType() string { return ocispec.MediaTypeImageLayer }

// Close closes the compressed stream as well.
func (d *decompressed) Close() error { return errors.Join(d.plain.Close(), d.stream.Close()) }
