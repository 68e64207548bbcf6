// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layer is a stream of bytes as they came from a registry.
type layer struct{ io.Reader }

func (layer) Close() error      { return nil }
func (layer) MediaType() string { return ocispec.MediaTypeImageLayerGzip }

// A layer is decompressed, or is an error, whatever a registry sends in its place.
func FuzzDecompress(f *testing.F) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write([]byte("a layer")); err != nil || w.Close() != nil {
		f.Fatal(err)
	}
	f.Add(z.Bytes())
	f.Add([]byte("\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decompress(t.Context(), layer{bytes.NewReader(b)}, nil)
		if err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, d, 64<<20) // it ends
		if err := d.Close(); err != nil {
			t.Log(err)
		}
	})
}
