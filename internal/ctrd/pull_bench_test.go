// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/embed/embedtest"
	"berth/internal/image"
	"berth/internal/testimage"
	"berth/internal/testimage/testregistry"
)

// BenchmarkPull pulls an image of five layers, of which nothing is there, from a registry in this
// process.
func BenchmarkPull(b *testing.B) {
	cfg := embedtest.Config(b)
	cfg.Snapshotter = "overlayfs"
	i, err := NewImages(embedtest.Start(b, cfg).Client(), ImagesConfig{
		Snapshotter:            "overlayfs",
		MaxConcurrentDownloads: 3,
		MaxConcurrentUnpacks:   3,
		Owner:                  "test",
		MountDir:               filepath.Join(cfg.State, "images"),
		Logger:                 slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	var layers []v1.Layer
	for n := range 5 {
		var files []testimage.File
		for f := range 640 {
			var body []byte
			for len(body) < 64<<10 {
				r := random.Uint64()
				body = binary.LittleEndian.AppendUint64(fmt.Appendf(body, "word%04d", r%1000), r)
			}
			files = append(files, testimage.File{Name: fmt.Sprintf("layer%d-%d", n, f), Mode: 0o644, Body: body})
		}
		layer, err := testimage.Layer(files...)
		if err != nil {
			b.Fatal(err)
		}
		layers = append(layers, layer)
	}
	img, err := testimage.Image(v1Config(), layers...)
	if err != nil {
		b.Fatal(err)
	}
	ref := testregistry.Start(b).Push("layers:1", img)
	for b.Loop() {
		if _, err := i.Pull(b.Context(), ref, image.Credentials{}, image.Watch{Bytes: func() {}, Needs: func([]image.Blob) {}}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := i.Delete(b.Context(), ref); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
