// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/embedtest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// parallelStore makes the image store of an embedded containerd, which unpacks three layers at a
// time. It returns the directory of its snapshots as well.
func parallelStore(t testing.TB) (*Store, string) {
	t.Helper()
	cfg := embedtest.Config(t)
	cfg.Snapshotter = "overlayfs"
	i, err := New(connection.Through(embedtest.Start(t, cfg).Client()), Config{
		Snapshotter:            "overlayfs",
		MaxConcurrentDownloads: 3,
		MaxConcurrentUnpacks:   3,
		Owner:                  "test",
		MountDir:               filepath.Join(cfg.State, "images"),
		Root:                   cfg.Root,
		Logger:                 slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return i, filepath.Join(cfg.Root, "io.containerd.snapshotter.v1.overlayfs", "snapshots")
}

func layersOf(t *testing.T, layers ...[]testimage.File) v1.Image {
	t.Helper()
	var made []v1.Layer
	for _, files := range layers {
		l, err := testimage.Layer(files...)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, l)
	}
	img, err := testimage.Image(v1Config(), made...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func pulled(t *testing.T, i *Store, ref string) image.Stored {
	t.Helper()
	var layers layerCount
	st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", &layers)
	if err != nil {
		t.Fatal(err)
	}
	if layers.begun.Load() == 0 || layers.begun.Load() != layers.ended.Load() {
		t.Errorf("unpacking began %d times and ended %d times", layers.begun.Load(), layers.ended.Load())
	}
	return st
}

// layerCount counts the layers that are unpacked.
type layerCount struct {
	unseen
	begun, ended atomic.Int32
}

func (c *layerCount) Layer(step image.LayerStep) {
	switch step {
	case image.LayerBegins:
		c.begun.Add(1)
	case image.LayerEnds:
		c.ended.Add(1)
	}
}

func dir(name string) testimage.File { return testimage.File{Name: name, Mode: fs.ModeDir | 0o755} }

func file(name string) testimage.File {
	return testimage.File{Name: name, Mode: 0o644, Body: []byte(name)}
}

// The lowest layer comes only once a higher one is unpacked.
func TestLayersAreUnpackedBesideEachOther(t *testing.T) {
	i, snapshots := parallelStore(t)
	img := layersOf(t,
		[]testimage.File{dir("a"), file("a/lowest"), file("a/deleted"), dir("b"), file("b/hidden")},
		[]testimage.File{dir("a"), file("a/middle"), file("a/.wh.deleted")},
		[]testimage.File{dir("b"), file("b/.wh..wh..opq"), file("b/highest")},
	)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	lowest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, lowest.String()) {
				for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
					if found, _ := filepath.Glob(snapshots + "/*/fs/b/highest"); len(found) > 0 {
						next.ServeHTTP(w, r)
						return
					}
				}
				http.Error(w, "no other layer is unpacked", http.StatusBadRequest)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	st := pulled(t, i, reg.Push("team/app:1", img))
	err = i.Reader.view(t.Context(), image.Root{ChainID: st.ChainID}, func(root string) error {
		for name, want := range map[string]bool{
			"a/lowest":   true,
			"a/middle":   true,
			"b/highest":  true,
			"a/deleted":  false,
			"b/hidden":   false,
			"a/.wh.gone": false,
		} {
			_, err := os.Lstat(filepath.Join(root, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if got := err == nil; got != want {
				t.Errorf("%s is there: %t, want %t", name, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A layer beside which nothing is unpacked yet gets directories of its own where it has files in
// those of the layers below: /tmp was not writable for all any more.
func TestADirectoryThatALayerLacksIsTheOneBelow(t *testing.T) {
	i, _ := parallelStore(t)
	reg := testregistry.Start(t)
	st := pulled(t, i, reg.Push("team/app:1", layersOf(t,
		[]testimage.File{{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777, UID: 7}, dir("usr"), dir("usr/bin"), {Name: "bin", Mode: fs.ModeSymlink | 0o777, Target: "usr/bin"}},
		[]testimage.File{dir("opt"), file("opt/x")},
		[]testimage.File{file("tmp/x")},
		[]testimage.File{file("tmp/.wh.x")},
	)))
	err := i.Reader.view(t.Context(), image.Root{ChainID: st.ChainID}, func(root string) error {
		info, err := os.Stat(filepath.Join(root, "tmp"))
		if err != nil {
			return err
		}
		if want := fs.ModeDir | fs.ModeSticky | 0o777; info.Mode() != want {
			t.Errorf("/tmp has mode %s, want %s", info.Mode(), want)
		}
		_, err = os.Stat(filepath.Join(root, "opt/x"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
