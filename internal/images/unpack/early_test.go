// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/test/durabletest"
	"berth/test/testimage"
)

// stalling is a content store with one layer, which calls then before it gives away what is behind
// at.
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

// PROPERTIES 48: what is unpacked is on its way to the disk while the rest is unpacked, in one large
// file as in many small ones. The kernel alone begins with that half a minute later.
func TestWhatIsUnpackedGoesToTheDiskMeanwhile(t *testing.T) {
	tells := durabletest.CanTell(t, t.TempDir())
	const size = 40 << 20
	large := []testimage.File{{Name: "dir/large", Mode: 0o644, Body: make([]byte, size)}}
	small := []testimage.File{}
	for range size >> 20 {
		small = append(small, testimage.File{Name: "dir/" + string(rune('A'+len(small))), Mode: 0o644, Body: make([]byte, 1<<20)})
	}
	for name, c := range map[string]struct {
		files []testimage.File
		look  string
		has   int64 // bytes, by the time that the layer stalls
		most  int64 // bytes of it whose writeback nothing has begun
	}{
		"one file":   {large, "dir/large", 31 << 20, 9 << 20},
		"many files": {small, "dir/" + string(rune('A'+20)), 1 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			layer := &stalling{blob: blob{b: tarOf(t, c.files...)}, at: 32 << 20}
			layer.then = sync.OnceFunc(func() {
				if !tells {
					return
				}
				if err := durabletest.AwaitClean(filepath.Join(dir, c.look), c.has, c.most); err != nil {
					t.Error(err)
				}
			})
			_, err := Applier{Layers: layer}.Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: dir})
			try(t, err)
		})
	}
}

// A layer may put something else in the place of a file that it has just written. That is not opened:
// opening a device acts on it.
func TestWhatIsNoFileAnyMoreIsNotOpened(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "x", Typeflag: tar.TypeFifo, Mode: 0o644},
		{Name: "padding", Typeflag: tar.TypeReg, Mode: 0o644, Size: 20 << 20},
	} {
		try(t, w.WriteHeader(&h))
		_, err := w.Write(make([]byte, h.Size))
		try(t, err)
	}
	try(t, w.Close())
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	try(t, err)
	opened := os.NewFile(uintptr(watch), "inotify")
	defer opened.Close()
	layer := &stalling{blob: blob{b: b.Bytes()}, at: 4 << 20}
	layer.then = sync.OnceFunc(func() { // the FIFO is there, or will be before the first writeback begins
		if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_OPEN); err != nil {
			t.Error(err)
		}
	})
	_, err = Applier{Layers: layer}.Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: dir})
	try(t, err)
	if st, err := os.Lstat(filepath.Join(dir, "x")); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		t.Fatalf("x is %v, %v", st, err)
	}
	events := make([]byte, 64<<10)
	n, _ := opened.Read(events) // or EAGAIN
	seen := events[:max(n, 0)]
	if !bytes.Contains(seen, []byte("padding\x00")) {
		t.Errorf("the watch has not seen that a file is opened: %q", seen)
	}
	if bytes.Contains(seen, []byte("x\x00")) {
		t.Error("the FIFO was opened")
	}
}
