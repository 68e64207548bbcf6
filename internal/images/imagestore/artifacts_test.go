// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

func artifactOf(t *testing.T, cfg testimage.ArtifactConfig, blobs ...testimage.Blob) v1.Image {
	t.Helper()
	img, err := testimage.Artifact(cfg, blobs...)
	try(t, err)
	return img
}

// dirOfLayer returns the directory of a committed layer of the native snapshotter, or of overlayfs.
func dirOfLayer(t *testing.T, i *Store, chain string) string {
	t.Helper()
	ctx := connection.Namespaced(t.Context())
	sn := i.client.SnapshotService(i.cfg.Snapshotter)
	key := "look-" + filepath.Base(t.Name())
	ms, err := sn.View(ctx, key, chain, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "now"}))
	try(t, err)
	t.Cleanup(func() { _ = sn.Remove(context.WithoutCancel(ctx), key) })
	return ms[0].Source
}

func contentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	try(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		got[rel] = string(b)
		return err
	}))
	return got
}

// An artifact could not be pulled: its layers are not the layers of a file system.
func TestAnArtifactIsPulledAndLaidOut(t *testing.T) {
	for name, cfg := range map[string]testimage.ArtifactConfig{
		"empty configuration":         {Type: "application/vnd.test.model"},
		"no type":                     {},
		"configuration of its own":    {ConfigType: "application/vnd.cncf.model.config.v1+json", Config: []byte(`not JSON`)},
		"configuration of an image":   {Type: "application/vnd.test", ConfigType: "application/vnd.oci.image.config.v1+json"},
		"configuration that is large": {ConfigType: "application/x", Config: make([]byte, maxBlob+1)},
	} {
		t.Run(name, func(t *testing.T) {
			i := store(t)
			img := artifactOf(t, cfg,
				testimage.Blob{Title: "model.bin", Body: []byte("weights")},
				testimage.Blob{Title: "a/b/config.json", MediaType: "application/json", Body: []byte("{ }")},
				testimage.Blob{Title: "layer.tar.gz", MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Body: []byte("an archive")},
				testimage.Blob{Annotations: map[string]string{"org.cncf.model.filepath": "of/a/model"}, Body: []byte("tokens")},
				testimage.Blob{Body: []byte("has no name")},
			)
			ref := testregistry.Start(t).Push("team/model:1", img)
			st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			try(t, err)
			d, err := img.Digest()
			try(t, err)
			if st.ID != d.String() || st.Name.Target().Digest.String() != d.String() || st.Artifact == "" || st.Size < 20 {
				t.Errorf("%+v, want the digest %s", st, d)
			}
			want := map[string]string{"model.bin": "weights", "a/b/config.json": "{ }", "layer.tar.gz": "an archive", "of/a/model": "tokens"}
			if got := contentsOf(t, dirOfLayer(t, i, st.ChainID)); !mapsEqual(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if again, err := i.Get(t.Context(), ref); err != nil || again.ID != st.ID || again.Artifact != st.Artifact {
				t.Errorf("%+v %v", again, err)
			}
		})
	}
}

func mapsEqual(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// Two artifacts have the same empty configuration: its digest tells none from another.
func TestArtifactsAreToldFromEachOther(t *testing.T) {
	i := store(t)
	reg := testregistry.Start(t)
	one, err := i.Pull(t.Context(), reg.Push("a:1", artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "x", Body: []byte("1")})), image.Credentials{}, "", nil)
	try(t, err)
	two, err := i.Pull(t.Context(), reg.Push("b:1", artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "y", Body: []byte("1")})), image.Credentials{}, "", nil)
	try(t, err)
	if one.ID == two.ID || one.ChainID == two.ChainID {
		t.Errorf("%+v and %+v", one, two)
	}
}

// What cannot be laid out is refused before a byte of a layer is asked for.
func TestAnArtifactWithABadNameIsRefusedBeforeItsLayersAreFetched(t *testing.T) {
	i := store(t)
	body := []byte("never fetched")
	reg := testregistry.Start(t)
	ref := reg.Push("team/evil:1", artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "../../etc/cron.d/x", Body: body}))
	_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "../../etc/cron.d/x") {
		t.Errorf("%v", err)
	}
	if slices.ContainsFunc(reg.Requests(), func(r testregistry.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.Path, digest.FromBytes(body).Encoded())
	}) {
		t.Error("the layer was fetched")
	}
	if _, err := i.Get(t.Context(), ref); !errdefs.IsNotFound(err) {
		t.Errorf("it is there all the same: %v", err)
	}
}

// A pull that failed in the middle of a blob of many GiB began it again. What is kept for that goes
// once the next pull has ended.
func TestAPullGoesOnWhereTheLastOneFailed(t *testing.T) {
	i := store(t)
	const size, cut = 4 << 20, 1 << 20
	large := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var served atomic.Int64
	var broken atomic.Bool
	broken.Store(true)
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.FromBytes(large).String()) {
				next.ServeHTTP(w, r)
				return
			}
			if broken.Load() {
				if served.Load() > 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Content-Length", strconv.Itoa(size))
				n, _ := w.Write(large[:cut])
				served.Add(int64(n))
				panic(http.ErrAbortHandler)
			}
			served.Store(0)
			http.ServeContent(counted{w, &served}, r, "", time.Time{}, bytes.NewReader(large))
		})
	}))
	ref := reg.Push("team/large:1", artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "l", Body: large}))
	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err == nil {
		t.Fatal("pulled from a registry that is broken")
	}
	ctx := connection.Namespaced(t.Context())
	// What no lease keeps goes with the next collection, for which this waits.
	l, err := i.client.LeasesService().Create(ctx, leases.WithRandomID())
	try(t, err)
	try(t, i.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete))
	try(t, i.Sweep(ctx))
	broken.Store(false)
	_, err = i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	try(t, err)
	if n := served.Load(); n == 0 || n > size-cut/2 {
		t.Errorf("the second pull was served %d bytes of %d, of which the first had %d", n, size, cut)
	}
	left, err := i.client.LeasesService().List(ctx)
	if err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}
}

// counted counts the bytes of an answer.
type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// The layer goes with the name, and comes again from the blobs when it is lost.
func TestTheLayerOfAnArtifactGoesWithItsNameAndComesAgainWhenLost(t *testing.T) {
	i := store(t)
	ctx := connection.Namespaced(t.Context())
	sn := i.client.SnapshotService(i.cfg.Snapshotter)
	img := artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "x", Body: []byte("1")})
	st := imported(t, i, img)
	if st.Artifact == "" {
		t.Fatalf("%+v", st)
	}
	try(t, sn.Remove(ctx, st.ChainID))
	try(t, i.Unpack(ctx, st.Name, i.cfg.Snapshotter))
	try(t, i.Unpack(ctx, st.Name, i.cfg.Snapshotter))
	if got := contentsOf(t, dirOfLayer(t, i, st.ChainID)); got["x"] != "1" {
		t.Errorf("%q", got)
	}
	try(t, sn.Remove(ctx, "look-"+t.Name()))
	removed(t, i, st)
	if _, err := sn.Stat(ctx, st.ChainID); !errdefs.IsNotFound(connection.Native(err)) {
		t.Errorf("the layer stays: %v", err)
	}
	try(t, i.client.ContentStore().Walk(ctx, func(info content.Info) error {
		t.Errorf("the blob %s stays", info.Digest)
		return nil
	}))
	try(t, sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		t.Errorf("the layer %s stays", info.Name)
		return nil
	}))
}

// What a layer of an artifact shares with the blobs takes room once.
func TestTheBytesOfAnArtifactCountOnce(t *testing.T) {
	i := store(t)
	body := make([]byte, 1<<20)
	for n := range body {
		body[n] = byte(n * n >> 3)
	}
	st := imported(t, i, artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "x", Body: body}))
	c, err := i.Contents(t.Context())
	try(t, err)
	if l := c.Layers[st.ChainID]; !l.Measured || l.Size > 64<<10 {
		t.Errorf("the layer has %+v", l)
	}
	if n := c.Blobs[digest.FromBytes(body).String()]; n != 1<<20 {
		t.Errorf("the blob has %d bytes", n)
	}
	u, err := i.Usage(t.Context())
	try(t, err)
	if u.Images.Bytes < 1<<20 || u.Images.Bytes > 3<<19 {
		t.Errorf("images use %d bytes", u.Images.Bytes)
	}
}
