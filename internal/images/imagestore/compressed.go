// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that an archive can have its decompression use, in bytes: zstd uses
// as much for its option --long.
const maxWindow = 128 << 20

// The bytes that files begin with.
var (
	magicGzip  = []byte{0x1f, 0x8b, 0x08}
	magicZstd  = []byte{0x28, 0xb5, 0x2f, 0xfd}
	magicBzip2 = []byte("BZh")
	magicXz    = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
)

// plain decompresses an archive. The bytes that it begins with decide how. The caller closes it.
func plain(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	begin, err := b.Peek(len(magicXz))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(begin, magicGzip):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		return z, nil
	case bytes.HasPrefix(begin, magicZstd):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(begin, magicBzip2), bytes.HasPrefix(begin, magicXz):
		return nil, fmt.Errorf("it is compressed with bzip2 or xz; compress it with gzip or zstd, or not at all: %w", errdefs.ErrInvalidArgument)
	}
	return io.NopCloser(b), nil
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
