// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// blobOfLayer returns a layer of an image as the registry serves it.
func blobOfLayer(t *testing.T, img v1.Image, n int) (digest string, blob []byte) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := layers[n].Digest()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[n].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if blob, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	return d.String(), blob
}

// wrongDiffID is a layer that claims to have other files.
type wrongDiffID struct{ v1.Layer }

// DiffID returns a digest of something else.
func (wrongDiffID) DiffID() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}, nil
}

// serving is a registry that serves one blob in a way of its own.
func serving(digest func() string, serve http.HandlerFunc) testregistry.Option {
	return testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+digest()) {
				serve(w, r)
			} else {
				next.ServeHTTP(w, r)
			}
		})
	})
}

// The registry keeps the end of a layer back until a file of its beginning is unpacked, also if the
// layer has to be unpacked onto the one below. PROPERTIES 66.
func TestALayerIsUnpackedWhileItArrives(t *testing.T) {
	i, snaps := parallelStore(t)
	for name, second := range map[string][]testimage.File{
		"beside": {dir("later"), {Name: "later/first", Mode: 0o644, Body: []byte("1")}, {Name: "later/second", Mode: 0o644, Body: noise(4 << 20)}},
		"onto":   {{Name: "lowest/first", Mode: 0o644, Body: []byte("1")}, {Name: "lowest/second", Mode: 0o644, Body: noise(4 << 20)}},
	} {
		t.Run(name, func(t *testing.T) {
			img := layersOf(t, []testimage.File{dir("lowest"), file("lowest/" + name)}, second)
			digest, blob := blobOfLayer(t, img, 1)
			reg := testregistry.Start(t, serving(func() string { return digest }, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(len(blob)))
				_, _ = w.Write(blob[:len(blob)/2])
				_ = http.NewResponseController(w).Flush()
				for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && r.Context().Err() == nil; time.Sleep(time.Millisecond) {
					if found, _ := filepath.Glob(snaps + "/*/fs/*/first"); len(found) > 0 {
						_, _ = w.Write(blob[len(blob)/2:])
						return
					}
				}
				panic(http.ErrAbortHandler)
			}))
			st := pulled(t, i, reg.Push("team/app:1", img))
			for _, n := range st.NamesGiven() {
				if err := i.Delete(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A layer counts once both digests are right: that of the blob and that of its files. If either is
// wrong, at the last byte, nothing stays. PROPERTIES 66.
func TestALayerThatLiesAtItsLastByteLeavesNothing(t *testing.T) {
	i, snaps := parallelStore(t)
	honest := layersOf(t, []testimage.File{dir("a"), {Name: "a/file", Mode: 0o644, Body: noise(1 << 20)}})
	digest, blob := blobOfLayer(t, honest, 0)
	lastByte, header := bytes.Clone(blob), bytes.Clone(blob)
	lastByte[len(blob)-1] ^= 1
	header[9] ^= 1 // the operating system of gzip: the same files
	layers, err := honest.Layers()
	if err != nil {
		t.Fatal(err)
	}
	otherFiles, err := testimage.Image(v1Config(), wrongDiffID{layers[0]})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		img    v1.Image
		served []byte
	}{
		"the last byte":         {honest, lastByte},
		"a byte of the header":  {honest, header},
		"the digest of the tar": {otherFiles, blob},
	} {
		t.Run(name, func(t *testing.T) {
			reg := testregistry.Start(t, serving(func() string { return digest }, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(len(c.served)))
				_, _ = w.Write(c.served)
			}))
			if _, err := i.Pull(t.Context(), reg.Push("team/app:1", c.img), image.Credentials{}, "", nil); err == nil {
				t.Fatal("the pull succeeded")
			}
			ctx := connection.Namespaced(t.Context())
			_ = i.client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
				t.Errorf("snapshot %s is left", s.Name)
				return nil
			})
			if left, _ := filepath.Glob(snaps + "/*/fs/a/file"); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
			if begun, err := i.client.ContentStore().ListStatuses(ctx); err != nil || len(begun) > 0 {
				t.Errorf("blobs are left: %v, %v", begun, err)
			}
			if err := i.collect(ctx); err != nil {
				t.Fatal(err)
			}
			_ = i.client.ContentStore().Walk(ctx, func(b content.Info) error {
				t.Errorf("blob %s is left", b.Digest)
				return nil
			})
		})
	}
}

// More layers that do not come any further than are unpacked at a time hold up no image that comes.
// PROPERTIES 66.
func TestLayersThatHangHoldUpNoOtherImage(t *testing.T) {
	i, _ := parallelStore(t)
	var hang sync.Map // digests
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			blob, ok := hang.Load(path.Base(r.URL.Path))
			if !ok || r.Method != http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			b := blob.([]byte)
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			_, _ = w.Write(b[:len(b)/2])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}))
	ctx, cancel := context.WithCancel(t.Context())
	var pulls sync.WaitGroup
	defer pulls.Wait()
	defer cancel()
	begun := &layerCount{}
	for n := range max(3, runtime.NumCPU()) + 1 {
		img := layersOf(t, []testimage.File{{Name: strconv.Itoa(n), Mode: 0o644, Body: noise(4 << 20)}})
		digest, blob := blobOfLayer(t, img, 0)
		ref := reg.Push(fmt.Sprintf("team/hangs:%d", n), img)
		hang.Store(digest, blob)
		pulls.Go(func() { _, _ = i.Pull(ctx, ref, image.Credentials{}, "", begun) })
	}
	for left := true; left; time.Sleep(time.Millisecond) { // until all of them have come as far as they do
		st, err := i.client.ContentStore().ListStatuses(connection.Namespaced(t.Context()))
		try(t, err)
		far := 0
		for _, s := range st {
			if s.Offset > 0 {
				far++
			}
		}
		left = far <= max(3, runtime.NumCPU())
	}
	pulled(t, i, reg.Push("team/app:1", layersOf(t, []testimage.File{{Name: "f", Mode: 0o644, Body: noise(1 << 20)}})))
	if begun.begun.Load() > 0 {
		t.Error("a layer that hangs counts as one that is unpacked")
	}
}
