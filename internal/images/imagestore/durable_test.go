// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/engine/embed"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
	"berth/test/embedtest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// node is a store in overlayfs whose images are kept durable, and what an unclean boot needs.
type durableNode struct {
	*Store
	cfg    embed.Config
	client *containerd.Client
	root   string // of berth
	log    syncedBuffer
}

// syncedBuffer may be written from any goroutine.
type syncedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// kept starts an embedded containerd, and makes the store of a berth that runs for the first time.
func kept(t *testing.T) *durableNode {
	t.Helper()
	n := &durableNode{cfg: embedtest.Config(t), root: t.TempDir()}
	n.cfg.Snapshotter = overlay
	n.client = embedtest.Start(t, n.cfg).Client()
	n.open(t)
	return n
}

// open makes the store of one more berth.
func (n *durableNode) open(t *testing.T) {
	t.Helper()
	boot, err := durable.OpenBoot(n.root)
	if err != nil {
		t.Fatal(err)
	}
	if n.Store, err = New(connection.Through(n.client), Config{
		Snapshotter:            overlay,
		MaxConcurrentDownloads: 3,
		MaxConcurrentUnpacks:   3,
		Owner:                  "test",
		MountDir:               filepath.Join(n.cfg.State, "images"),
		Logger:                 slog.New(slog.NewTextHandler(&n.log, nil)),
		Boot:                   boot,
		Root:                   n.cfg.Root,
	}); err != nil {
		t.Fatal(err)
	}
}

// unclean makes the store of a berth that starts after an unclean boot. Nothing is checked before
// run is called. What run returns waits until nothing is doubted, and ends the checks.
func (n *durableNode) unclean(t *testing.T) (run func() (settled func())) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.root, "boot"), []byte(`{"boot":"an earlier one"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	return func() (settled func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.KeepDurable(ctx) }()
		return func() {
			n.until(t, func() bool { return !n.Store.cfg.Boot.Doubted() })
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

const kind = "durable"

// twoLayers makes an image with a file in each of two layers.
func twoLayers(t *testing.T) v1.Image {
	t.Helper()
	var layers []v1.Layer
	for _, name := range []string{"low", "high"} {
		layer, err := testimage.Layer(
			testimage.File{Name: "d", Mode: fs.ModeDir | 0o755},
			testimage.File{Name: "d/" + name, Mode: 0o640, Body: []byte(kind + name)},
		)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, layer)
	}
	img, err := testimage.Image(v1Config(), layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// synced puts the layers of an image onto the disk, which writes their indexes.
func (n *durableNode) synced(t *testing.T, chainID string) {
	t.Helper()
	d := stored(n.Store)
	items, err := d.Below(t.Context(), overlay, chainID)
	ctx := connection.Namespaced(t.Context())
	for _, item := range items {
		err = errors.Join(err, d.Index(ctx, item), d.Sync(ctx, item))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lose empties each file of the layers of an image, and their indexes if these are to be lost too.
func (n *durableNode) lose(t *testing.T, chainID string, indexes bool) {
	t.Helper()
	d := stored(n.Store)
	ctx := connection.Namespaced(t.Context())
	items, err := d.Below(ctx, overlay, chainID)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		at, err := d.dirOf(ctx, item)
		if err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(at.dir + "/d/*")
		if indexes {
			files = append(files, unpack.IndexOf(at.dir))
		}
		for _, f := range files {
			if err := os.Truncate(f, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// whole fails unless the image has its files.
func (n *durableNode) whole(t *testing.T, chainID, when string) {
	t.Helper()
	got, err := n.ReadFiles(t.Context(), image.Root{ChainID: chainID}, 100, "d/low", "d/high")
	if err != nil || string(got[0]) != kind+"low" || string(got[1]) != kind+"high" {
		t.Errorf("%s: %q %v", when, got, err)
	}
}

// PROPERTIES 39: what an unclean boot has lost is unpacked again before anybody gets it, also where
// its index is lost, and without a registry. An import and a pull of what is wrong repair it.
func TestAWrongLayerIsRepaired(t *testing.T) {
	n := kept(t)
	img := twoLayers(t)
	st := imported(t, n.Store, img)
	n.whole(t, st.ChainID, "imported")
	n.synced(t, st.ChainID)
	for _, indexes := range []bool{false, true} {
		run := n.unclean(t)
		n.lose(t, st.ChainID, indexes)
		settled := run()
		n.whole(t, st.ChainID, "after an unclean boot")
		settled()
	}
	n.open(t)
	n.lose(t, st.ChainID, false)
	imported(t, n.Store, img)
	n.whole(t, st.ChainID, "imported again")

	reg := testregistry.Start(t)
	ref := reg.Push("two:1", img)
	pull := func() image.Stored {
		t.Helper()
		got, err := n.Pull(t.Context(), ref, image.Credentials{}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	n.open(t)
	n.lose(t, st.ChainID, false)
	pull()
	n.whole(t, st.ChainID, "pulled")
	// Its blobs are not there, so the registry has to be asked for them.
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.lose(t, st.ChainID, false)
	for _, l := range manifest.Layers {
		if err := n.client.ContentStore().Delete(connection.Namespaced(t.Context()), digest.Digest(l.Digest.String())); err != nil {
			t.Fatal(err)
		}
	}
	pull()
	n.whole(t, st.ChainID, "pulled without blobs")
}

// PROPERTIES 39: what cannot be repaired, since its blob is lost as well, is removed and named.
func TestAnImageWithoutAWholeBlobIsRemoved(t *testing.T) {
	n := kept(t)
	img := twoLayers(t)
	st := imported(t, n.Store, img)
	n.synced(t, st.ChainID)
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	run := n.unclean(t)
	n.lose(t, st.ChainID, true)
	path := filepath.Join(n.cfg.Root, "io.containerd.content.v1.content/blobs/sha256", manifest.Layers[0].Digest.Hex)
	if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 0)); err != nil {
		t.Fatal(err)
	}
	settled := run()
	err = n.Trust(t.Context(), overlay, st.ChainID)
	if err == nil {
		t.Error("a layer that is lost is trusted")
	}
	settled()
	if _, err := n.Get(t.Context(), st.Name.String()); !errdefs.IsNotFound(err) {
		t.Errorf("the image is still there: %v", err)
	}
	if text := n.log.String(); !strings.Contains(text, st.Name.String()) || !strings.Contains(text, "pull it again") {
		t.Errorf("the log does not say it: %s", text)
	}
	if again := imported(t, n.Store, img); again.ChainID != st.ChainID {
		t.Error("another image")
	}
	n.whole(t, st.ChainID, "imported again")
}

// PROPERTIES 39: what a pull has left that a power cut ended is removed, also where it was about to
// unpack one more layer above a lost one. Nothing stays in doubt.
func TestWhatACutPullHasLeftIsRemoved(t *testing.T) {
	n := kept(t)
	st := imported(t, n.Store, twoLayers(t))
	n.synced(t, st.ChainID)
	ctx := connection.Namespaced(t.Context())
	low, err := (stored(n.Store)).Below(ctx, overlay, st.ChainID)
	if err != nil {
		t.Fatal(err)
	}
	layers := n.client.SnapshotService(overlay)
	for _, parent := range []string{low[0].ID, st.ChainID} {
		kept := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "test"})
		if _, err := layers.Prepare(ctx, "extract-1-"+parent[7:11]+" sha256:next", parent, kept); err != nil {
			t.Fatal(err)
		}
	}
	removed(t, n.Store, st)
	run := n.unclean(t)
	n.lose(t, st.ChainID, true)
	run()()
	for _, name := range []string{low[0].ID, st.ChainID} {
		if _, err := layers.Stat(ctx, name); !errdefs.IsNotFound(connection.Native(err)) {
			t.Errorf("layer %s is left: %v", name, err)
		}
	}
}

// PROPERTIES 39: whoever unpacks a layer waits for the doubted ones below it, whose directories an
// unclean boot may have lost.
func TestALayerIsUnpackedOnWholeOnes(t *testing.T) {
	n := kept(t)
	img := twoLayers(t)
	ref := testregistry.Start(t).Push("two:1", img)
	ctx := connection.Namespaced(t.Context())
	var st image.Stored
	for name, make := range map[string]func() error{
		"an import": func() error {
			_, _, err := n.Import(t.Context(), archived(t, img), "", unread)
			return err
		},
		"a creation": func() error {
			return n.Unpack(ctx, st.Name, overlay)
		},
		"a pull": func() error {
			_, err := n.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			return err
		},
		"a pull, layer by layer": func() error {
			n.Store.cfg.MaxConcurrentUnpacks = 1
			_, err := n.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			return err
		},
	} {
		st = imported(t, n.Store, img)
		n.synced(t, st.ChainID)
		d := stored(n.Store)
		items, err := d.Below(ctx, overlay, st.ChainID)
		try(t, err)
		low, err := d.dirOf(ctx, items[0])
		try(t, err)
		try(t, n.client.SnapshotService(overlay).Remove(ctx, st.ChainID))
		run := n.unclean(t)
		try(t, errors.Join(os.RemoveAll(low.dir), os.Remove(unpack.IndexOf(low.dir))))
		settled := run()
		if err := make(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		settled()
		n.whole(t, st.ChainID, name)
	}
}

// PROPERTIES 39: the files of an artifact that an unclean boot has lost are laid out again from its
// blobs, and it is removed where one of them is lost. A person sees both.
func TestAnArtifactThatIsWrongIsLaidOutAgain(t *testing.T) {
	n := kept(t)
	img := artifactOf(t, testimage.ArtifactConfig{},
		testimage.Blob{Title: "d/model", Body: []byte("weights")}, testimage.Blob{Title: "card", Body: []byte("text")})
	st := imported(t, n.Store, img)
	d := stored(n.Store)
	ctx := connection.Namespaced(t.Context())
	files := func(when, want string) {
		t.Helper()
		items, err := d.Below(ctx, overlay, st.ChainID)
		try(t, err)
		at, err := d.dirOf(ctx, items[0])
		try(t, err)
		if b, err := os.ReadFile(at.dir + "/d/model"); string(b) != want {
			t.Errorf("%s: %q %v", when, b, err)
		}
		if want == "weights" { // as a write that the disk has lost, and not into the blob
			try(t, errors.Join(os.Remove(at.dir+"/d/model"), os.WriteFile(at.dir+"/d/model", nil, 0o444)))
		}
	}
	n.synced(t, st.ChainID)
	files("laid out", "weights")
	outcomes := func(repair bool) (all string) {
		t.Helper()
		parts, err := n.Verify(t.Context(), st.Name, repair)
		try(t, err)
		for _, p := range parts {
			if p.Outcome != image.PartWhole {
				all += p.Kind + " " + p.Outcome + " "
			}
		}
		return all
	}
	if got := []string{outcomes(false), outcomes(true), outcomes(false)}; !slices.Equal(got, []string{"layer wrong ", "layer repaired ", ""}) {
		t.Errorf("verified: %q", got)
	}
	files("repaired", "weights")
	settled := n.unclean(t)()
	try(t, n.Trust(t.Context(), overlay, st.ChainID))
	settled()
	d = stored(n.Store)
	files("after an unclean boot", "weights")

	run := n.unclean(t)
	path := filepath.Join(n.cfg.Root, "io.containerd.content.v1.content/blobs/sha256", digest.FromString("weights").Encoded())
	try(t, errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 0)))
	run()()
	if _, err := n.Get(t.Context(), st.Name.String()); !errdefs.IsNotFound(err) {
		t.Errorf("an artifact without its blob is still there: %v", err)
	}
	if again := imported(t, n.Store, img); again.ChainID != st.ChainID {
		t.Error("another artifact")
	}
	d = stored(n.Store)
	files("imported again", "weights")
}

// until waits for a condition.
func (n *durableNode) until(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A person sees what is wrong with an image, and has it repaired.
func TestAnImageIsVerified(t *testing.T) {
	n := kept(t)
	st := imported(t, n.Store, twoLayers(t))
	outcomes := func(repair bool) (out []string) {
		t.Helper()
		parts, err := n.Verify(t.Context(), st.Name, repair)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if p.Outcome != image.PartWhole {
				out = append(out, p.Kind+" "+p.Outcome)
			}
		}
		return out
	}
	expect := func(got []string, want string) {
		t.Helper()
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	expect(outcomes(false), "layer unknown, layer unknown")
	n.synced(t, st.ChainID)
	expect(outcomes(false), "")
	n.lose(t, st.ChainID, false)
	expect(outcomes(false), "layer wrong, layer wrong")
	expect(outcomes(true), "layer repaired, layer repaired")
	expect(outcomes(true), "")
	n.whole(t, st.ChainID, "repaired")
	n.lose(t, st.ChainID, true)
	expect(outcomes(false), "layer unknown, layer unknown")
	expect(outcomes(true), "layer repaired, layer repaired")
	n.whole(t, st.ChainID, "repaired without an index")
}

// PROPERTIES 39: a layer whose sync has failed never gets the mark by a second sync, and the stop
// is not a clean one, until the layer is written again: by a repair that a person asks for, or by
// an import.
func TestALayerThatCouldNotBeSyncedIsWrittenAgain(t *testing.T) {
	n := kept(t)
	fails := errors.New("fsync: input/output error")
	var fail atomic.Bool
	syncLayer = func(ctx context.Context, dir, index string) error {
		if err := unpack.Sync(ctx, dir, index); err != nil || !fail.Load() {
			return err
		}
		return fails
	}
	defer func() { syncLayer = unpack.Sync }()
	fail.Store(true)
	img := twoLayers(t)
	st := imported(t, n.Store, img)
	d := stored(n.Store)
	ctx := connection.Namespaced(t.Context())
	items, err := d.Below(ctx, overlay, st.ChainID)
	if err != nil {
		t.Fatal(err)
	}
	all := func(ok func(i durable.Item) bool) func() bool {
		return func() bool { return !slices.ContainsFunc(items, func(i durable.Item) bool { return !ok(i) }) }
	}
	marked := func(i durable.Item) bool {
		info, err := n.client.SnapshotService(overlay).Stat(ctx, i.ID)
		return err == nil && info.Labels[labelDurable] == i.Made
	}
	running, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.KeepDurable(running) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for again, write := range []func(){
		func() {
			parts, err := n.Verify(t.Context(), st.Name, false)
			if err != nil || parts[len(parts)-1].Outcome != image.PartUnknown || !strings.Contains(parts[len(parts)-1].Detail, "onto the disk") {
				t.Errorf("%+v %v", parts, err)
			}
			if _, err := n.Verify(t.Context(), st.Name, true); err != nil {
				t.Error(err)
			}
		},
		func() { imported(t, n.Store, img) },
	} {
		n.until(t, all(n.Store.Durability.items.Unsynced))
		if slices.ContainsFunc(items, marked) {
			t.Fatal("what could not be synced has the mark")
		}
		if err := n.Settle(); !errors.Is(err, durable.ErrUnsynced) {
			t.Errorf("settled: %v", err)
		}
		n.whole(t, st.ChainID, "unsynced")
		fail.Store(again == 0) // the first rewriting cannot be synced either
		write()
		n.whole(t, st.ChainID, "written again")
	}
	n.until(t, all(marked))
	if err := n.Settle(); err != nil {
		t.Error(err)
	}
}

// A layer that is unpacked again while it is synced does not get the mark of that sync.
func TestALayerThatIsRepairedWhileItIsSyncedGetsNoMark(t *testing.T) {
	n := kept(t)
	st := imported(t, n.Store, twoLayers(t))
	n.synced(t, st.ChainID)
	d := stored(n.Store)
	ctx := connection.Namespaced(t.Context())
	items, err := d.Below(ctx, overlay, st.ChainID)
	if err != nil {
		t.Fatal(err)
	}
	top := items[len(items)-1]
	at, err := d.dirOf(ctx, top)
	try(t, err)
	var syncs atomic.Int32
	syncLayer = func(ctx context.Context, dir, index string) error {
		var verifying error
		if dir == at.dir && syncs.Add(1) == 1 {
			n.lose(t, st.ChainID, false)
			_, verifying = n.Verify(t.Context(), st.Name, true)
		}
		return errors.Join(verifying, unpack.Sync(ctx, dir, index))
	}
	defer func() { syncLayer = unpack.Sync }()
	running, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.KeepDurable(running) }()
	n.until(t, func() bool {
		info, err := n.client.SnapshotService(overlay).Stat(ctx, top.ID)
		return err == nil && info.Labels[labelDurable] == top.Made
	})
	if got := syncs.Load(); got != 2 {
		t.Errorf("it has the mark after %d syncs", got)
	}
	cancel()
	try(t, <-ended)
}

// PROPERTIES 39: a blob whose commit fails is not continued: the kernel may have lost what was
// written of it, and a second sync would succeed.
func TestABlobThatCouldNotBeSyncedBeginsAnew(t *testing.T) {
	n := kept(t)
	ctx := connection.Namespaced(t.Context())
	cs := boundedStore{Store: failing{n.client.ContentStore()}}
	w, err := cs.Writer(ctx, content.WithRef("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(ctx, 0, ""); err == nil {
		t.Fatal("it is committed")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err := n.client.ContentStore().Status(ctx, "a"); !errdefs.IsNotFound(err) {
		t.Errorf("it goes on after %d bytes: %v", st.Offset, err)
	}
}

// failing is a content store that cannot sync.
type failing struct{ content.Store }

func (f failing) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := f.Store.Writer(ctx, opts...)
	return failingWriter{w}, err
}

type failingWriter struct{ content.Writer }

func (w failingWriter) Commit(context.Context, int64, digest.Digest, ...content.Opt) error {
	return errors.Join(errors.New("sync failed: input/output error"), w.Close())
}

// The directory of containerd is held from before containerd has made it, so that a stop soon after
// the first image is a clean one.
func TestAStopAfterTheFirstImageIsClean(t *testing.T) {
	n := kept(t)
	n.cfg.Root = filepath.Join(t.TempDir(), "not made yet")
	n.open(t)
	imported(t, n.Store, twoLayers(t))
	if err := n.Settle(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(n.root, "boot"))
	if err != nil || !strings.Contains(string(text), "clean") {
		t.Errorf("%s %v", text, err)
	}
}
