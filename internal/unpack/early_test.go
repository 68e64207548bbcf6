// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/durable/durabletest"
	"berth/internal/testimage"
)

// stalling is a content store with one layer, which calls then before it gives away what is behind at.
type stalling struct {
	blob
	at   int64
	then func()
}

func (s *stalling) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) {
	return s, nil
}

func (s *stalling) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.at {
		s.then()
	}
	return s.blob.ReadAt(p, off)
}

// PROPERTIES 48: what is unpacked is on its way to the disk while the rest is unpacked, in one large file as
// in many small ones. The kernel alone begins with that half a minute later.
func TestWhatIsUnpackedGoesToTheDiskMeanwhile(t *testing.T) {
	const size = 40 << 20
	large := []testimage.File{{Name: "dir/large", Body: make([]byte, size)}}
	small := []testimage.File{}
	for range size >> 20 {
		small = append(small, testimage.File{Name: "dir/" + string(rune('A'+len(small))), Body: make([]byte, 1<<20)})
	}
	for name, c := range map[string]struct {
		files []testimage.File
		look  string
		has   int64 // bytes, by the time that the layer stalls
		most  int64 // bytes of it that nothing has begun to put onto the disk
	}{
		"one file":   {large, "dir/large", 31 << 20, 9 << 20},
		"many files": {small, "dir/" + string(rune('A'+20)), 1 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			layer := &stalling{blob: blob{b: tarOf(t, c.files...)}, at: 32 << 20}
			layer.then = sync.OnceFunc(func() { durabletest.AwaitClean(t, filepath.Join(dir, c.look), c.has, c.most) })
			_, err := Applier{Layers: layer}.Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: dir})
			try(t, err)
		})
	}
}
