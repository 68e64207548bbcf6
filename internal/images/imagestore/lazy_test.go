// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/engine/embed"
	"berth/internal/images/image"
	"berth/test/embedtest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// A snapshotter that is a program of its own has one layer of an image from elsewhere. It is told
// which layers of which image these are, the blob of that layer is not fetched, and the other one
// is. The snapshotter goes away and comes back. A handler that has another snapshotter gets all of
// the image.
func TestALayerThatASnapshotterHasIsNotFetched(t *testing.T) {
	lazy := embedtest.NewLazy(t)
	cfg := embedtest.Config(t)
	cfg.Snapshotter, cfg.Proxies = "lazy", map[string]embed.Proxy{"lazy": {Address: lazy.Address, Root: t.TempDir()}}
	conn := connection.Through(embedtest.Start(t, cfg).Client()) // which does not wait for the snapshotter
	i, err := New(conn, Config{
		Snapshotter:            "lazy",
		Snapshotters:           []string{"overlayfs"},
		MaxConcurrentDownloads: 3,
		MaxConcurrentUnpacks:   3,
		Owner:                  "test",
		MountDir:               filepath.Join(cfg.State, "images"),
		Root:                   cfg.Root,
		Logger:                 slog.New(slog.DiscardHandler),
	})
	try(t, err)
	img := layersOf(t,
		[]testimage.File{dir("a"), file("a/far")},
		[]testimage.File{dir("b"), file("b/fetched")},
	)
	layers, err := img.Layers()
	try(t, err)
	far, err := layers[0].Digest()
	try(t, err)
	lazy.Has(far.String(), func(root string) error {
		return os.MkdirAll(filepath.Join(root, "a/far"), 0o755) // a directory, so that it is not the blob's
	})
	var fetched atomic.Int32
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, far.String()) && r.Method == http.MethodGet {
				fetched.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	}))
	ref := reg.Push("team/app:1", img)

	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), lazy.Address) {
		t.Errorf("without the snapshotter: %v", err)
	}
	comes := func(f func() error) { // containerd connects again within a second
		lazy.Serve(t)
		for range retry.Doubling(t.Context().Done(), 10*time.Millisecond, 100*time.Millisecond) {
			if err := f(); !errdefs.IsUnavailable(err) {
				try(t, err)
				return
			}
		}
	}
	var st image.Stored
	comes(func() (err error) {
		st, err = i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
		return err
	})
	if n := fetched.Load(); n > 0 {
		t.Errorf("the layer that the snapshotter has was fetched %d times", n)
	}
	asked := lazy.Asked()
	if l := asked[len(asked)-2]; l[snapshotters.TargetRefLabel] != ref || l[snapshotters.TargetLayerDigestLabel] != far.String() ||
		!strings.Contains(l[snapshotters.TargetImageLayersLabel], far.String()+",") || l[snapshotters.TargetManifestDigestLabel] == "" {
		t.Errorf("the snapshotter was told %v", l)
	}
	look := func() error {
		return i.Reader.view(t.Context(), image.Root{ChainID: st.ChainID}, func(root string) error {
			far, err := os.Stat(filepath.Join(root, "a/far"))
			if err != nil || !far.IsDir() {
				t.Errorf("the layer of the snapshotter: %v, %v", far, err)
			}
			_, err = os.Stat(filepath.Join(root, "b/fetched"))
			return err
		})
	}
	try(t, look())
	if u, err := i.Usage(t.Context()); err != nil || u.Path == "" || u.Images.Bytes == 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}

	lazy.Stop()
	if err := look(); !errdefs.IsUnavailable(err) {
		t.Errorf("the snapshotter was killed: %v", err)
	}
	if _, err := i.List(t.Context()); err != nil { // nothing that is listed asks the snapshotter
		t.Error(err)
	}
	comes(look)

	_, err = i.Pull(t.Context(), ref, image.Credentials{}, "overlayfs", nil)
	try(t, err)
	if n := fetched.Load(); n != 1 {
		t.Errorf("for a handler with another snapshotter the layer was fetched %d times", n)
	}
	whole, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID, Snapshotter: "overlayfs"}, 100, "a/far")
	if err != nil || string(whole[0]) != "a/far" {
		t.Errorf("the layer of the registry: %q, %v", whole, err)
	}

	removed(t, i, st)
	try(t, lazy.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		t.Errorf("%s is left", info.Name)
		return nil
	}))
}
