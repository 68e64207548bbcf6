// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/embedtest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

func v1Config() v1.Config { return v1.Config{Cmd: []string{"/x"}} }

// store makes the image store of an embedded containerd.
func store(t *testing.T) *Store {
	t.Helper()
	cfg := embedtest.Config(t)
	i, err := New(connection.Through(embedtest.Start(t, cfg).Client()), Config{
		Snapshotter:            "native",
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
	return i
}

func imageOf(t *testing.T, cfg v1.Config, files ...testimage.File) v1.Image {
	t.Helper()
	layer, err := testimage.Layer(files...)
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Image(cfg, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// imported imports an image under a name.
func imported(t *testing.T, i *Store, img v1.Image) image.Stored {
	t.Helper()
	st, _, err := i.Import(t.Context(), archived(t, img), "", unread)
	if err != nil || len(st) != 1 {
		t.Fatalf("%v %v", st, err)
	}
	return st[0]
}

// removed removes all names of an image.
func removed(t *testing.T, i *Store, st image.Stored) {
	t.Helper()
	for _, n := range st.NamesGiven() {
		if err := i.Delete(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
}

func archived(t *testing.T, img v1.Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := testimage.WriteOCIArchive(path, "berth.test/hostile:1", img); err != nil {
		t.Fatal(err)
	}
	return path
}

// A device node, a FIFO or a link in the place of /etc/passwd: what it leads to was opened before
// its type was known.
func TestOnlyRegularFilesOfAnImageAreOpened(t *testing.T) {
	i := store(t)
	st := imported(t, i, imageOf(t, v1Config(),
		testimage.File{Name: "etc", Mode: fs.ModeDir | 0o755},
		testimage.File{Name: "etc/passwd", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 4095, Minor: 7}, // nobody's: opening it fails
		testimage.File{Name: "etc/group", Mode: fs.ModeNamedPipe | 0o666},
		testimage.File{Name: "etc/shadow", Mode: fs.ModeSymlink | 0o777, Target: "/../../../../../etc/hostname"},
		testimage.File{Name: "etc/hostname", Mode: 0o644, Body: []byte("the image's")},
		testimage.File{Name: "etc/self", Mode: fs.ModeSymlink | 0o777, Target: "/proc/self/exe"},
		testimage.File{Name: "etc/large", Mode: 0o644, Body: make([]byte, 101)},
	))
	got, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID}, 100, "etc/passwd", "etc/group", "etc/shadow", "etc/self", "etc/absent", "etc/hostname/x")
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"", "", "the image's", "", "", ""} {
		if string(got[n]) != want {
			t.Errorf("%d: %q, want %q", n, got[n], want)
		}
	}
	if _, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID}, 100, "etc/large"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too large: %v", err)
	}
	// However a file is reached, nothing in a view acts on the host.
	if err := i.Reader.view(t.Context(), image.Root{ChainID: st.ChainID}, func(root string) error {
		var s unix.Statfs_t
		if err := unix.Statfs(root, &s); err != nil {
			return err
		}
		const want = unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID | unix.ST_NOEXEC
		if s.Flags&want != want {
			t.Errorf("mounted with flags %#x", s.Flags)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A socket is refused by open(2) itself: the look-up failed, and with it each creation of a
// container.
func TestAFileIsNotOpenedBeforeItsTypeIsKnown(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "passwd"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if b, err := readIn(fd, "passwd", 100); b != nil || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

// An image that another client fetched has no snapshots.
func TestAnImageWithoutSnapshotsIsUnpacked(t *testing.T) {
	i := store(t)
	f, err := os.Open(archived(t, imageOf(t, v1Config(), testimage.File{Name: "passwd", Mode: 0o644, Body: []byte("x")})))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := i.client.Client().Import(connection.Namespaced(t.Context()), f); err != nil {
		t.Fatal(err)
	}
	st, err := i.Get(t.Context(), "berth.test/hostile:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID}, 100, "passwd"); !errdefs.IsNotFound(err) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		if err := i.Unpack(t.Context(), st.Name, i.Snapshotter()); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID}, 100, "passwd"); err != nil || string(b[0]) != "x" {
		t.Errorf("after: %q %v", b, err)
	}
	absent, err := image.NewName("berth.test/absent:1", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("absent")}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Unpack(t.Context(), absent, i.Snapshotter()); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

// containerd's client reads manifests and configurations whole, however large they are.
func TestAnImageDoesNotEatMemory(t *testing.T) {
	i := store(t)
	cfg := v1Config()
	cfg.Labels = map[string]string{"x": strings.Repeat("x", maxBlob)}
	huge := imageOf(t, cfg, testimage.File{Name: "f", Mode: 0o644, Body: []byte("f")})
	reg := testregistry.Start(t)
	ref := reg.Push("team/huge:1", huge)
	before := len(reg.Requests())
	_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "configuration") {
		t.Errorf("pull: %v", err)
	}
	name, err := huge.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reg.Requests()[before:] {
		if strings.Contains(r.Path, name.String()) {
			t.Errorf("it was fetched: %s %s", r.Method, r.Path)
		}
	}
	if _, _, err := i.Import(t.Context(), archived(t, huge), "", unread); !errdefs.IsInvalidArgument(err) {
		t.Errorf("import: %v", err)
	}
	cfg.Labels = map[string]string{"x": strings.Repeat("x", maxConfig)} // it can be read, but not kept for each image
	if _, _, err := i.Import(t.Context(), archived(t, imageOf(t, cfg)), "", unread); !errdefs.IsInvalidArgument(err) {
		t.Errorf("import of a large configuration: %v", err)
	}
	if n := i.parsed.Len(); n != 0 {
		t.Errorf("%d are remembered", n)
	}
}

// CVE-2022-23648: the path of an image's volume, or what is at it, led to files of the host, which
// were copied into the container.
func TestAVolumeOfAnImageHoldsTheImagesFilesAlone(t *testing.T) {
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := store(t)
	st := imported(t, i, imageOf(t, v1Config(),
		testimage.File{Name: "abs", Mode: fs.ModeSymlink | 0o777, Target: secret},
		testimage.File{Name: "rel", Mode: fs.ModeSymlink | 0o777, Target: "../../../../../../../../.." + secret},
		testimage.File{Name: "own", Mode: fs.ModeSymlink | 0o777, Target: "/data"},
		testimage.File{Name: "data", Mode: fs.ModeDir | 0o755},
		testimage.File{Name: "data/f", Mode: 0o640, UID: 7, Body: []byte("mine")},
		testimage.File{Name: "data/link", Mode: fs.ModeSymlink | 0o777, Target: filepath.Join(secret, "key")},
	))
	for path, want := range map[string]string{
		"/abs": "", "/rel": "", "/../../../../.." + secret: "", "/data/../../../.." + secret: "", "/proc/self/root" + secret: "", "/absent": "", "/data/f": "",
		"/data": "f link", "/own": "f link",
	} {
		dir := t.TempDir()
		if err := i.CopyOut(t.Context(), image.Root{ChainID: st.ChainID}, map[string]string{path: dir}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		var got []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: copied %v, want %q", path, got, want)
		}
		if want == "" {
			continue
		}
		if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != filepath.Join(secret, "key") {
			t.Errorf("%s: a link is not copied as a link: %q %v", path, target, err)
		}
	}
}

// CVE-2021-32760, CVE-2023-25153: what an archive holds stays in its root, and changes nothing
// outside.
func TestAnArchiveStaysInItsRoot(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := "../../../../../../../../../.."
	i := store(t)
	for name, files := range map[string][]testimage.File{
		"a path that climbs":    {{Name: up + outside + "/evil", Mode: 0o644, Body: []byte("evil")}},
		"a path through a link": {{Name: "out", Mode: fs.ModeSymlink | 0o777, Target: outside}, {Name: "out/evil", Mode: 0o644, Body: []byte("evil")}},
		"a hard link":           {{Name: "h", Mode: 0o777, Target: up + victim}},
		"a hard link by a link": {{Name: "out", Mode: fs.ModeSymlink | 0o777, Target: outside}, {Name: "h", Mode: 0o777, Target: "out/victim"}},
		"a mode through a link": {{Name: "v", Mode: fs.ModeSymlink | 0o777, Target: victim}, {Name: "v", Mode: fs.ModeSetuid | 0o777, Target: "v"}},
	} {
		_, _, err := i.Import(t.Context(), archived(t, imageOf(t, v1Config(), files...)), "", unread) // refused, or unpacked within its root
		st, serr := os.Stat(victim)
		b, rerr := os.ReadFile(victim)
		if serr != nil || rerr != nil || st.Mode() != 0o600 || string(b) != "host" || links(st) != 1 {
			t.Errorf("%s: the host's file is %v %q (import: %v)", name, st, b, err)
		}
		if left, _ := os.ReadDir(outside); len(left) != 1 {
			t.Errorf("%s: files were made outside: %v (import: %v)", name, left, err)
		}
	}
	// An index that never ends is not read whole.
	path := filepath.Join(t.TempDir(), "endless.tar")
	if err := os.WriteFile(path, endlessIndex(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := i.Import(t.Context(), path, "", unread); err == nil {
		t.Error("an index of 64 MiB was read")
	}
}

func links(st fs.FileInfo) uint64 { return uint64(st.Sys().(*syscall.Stat_t).Nlink) } //nolint:unconvert // its type differs between architectures

// endlessIndex makes an archive whose index has more bytes than any index needs.
func endlessIndex() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range map[string][]byte{
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json": append([]byte(`{"schemaVersion":2,"manifests":[]`), append(bytes.Repeat([]byte(" "), 64<<20), '}')...),
	} {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))})
		_, _ = w.Write(body)
	}
	_ = w.Close()
	return b.Bytes()
}

// A large blob can be looked into, but not read whole: its size counts, whatever a descriptor says.
func TestALargeBlobIsNotReadWhole(t *testing.T) {
	cs, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), maxBlob+1)
	desc := ocispec.Descriptor{Digest: digest.FromBytes(body), Size: int64(len(body))}
	if err := content.WriteBlob(t.Context(), cs, "x", bytes.NewReader(body), desc); err != nil {
		t.Fatal(err)
	}
	desc.Size = 2 // as a manifest would have it
	if _, err := content.ReadBlob(t.Context(), boundedStore{Store: cs}, desc); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	r, err := boundedStore{Store: cs}.ReaderAt(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := r.ReadAt(make([]byte, 10), int64(len(body)-10)); n != 10 || err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("%d %v", n, err)
	}
}

// layers is a snapshotter whose writable layers take long to measure.
type layers struct {
	infos []snapshots.Info
	slow  map[string]bool
	asked []string
}

func (l *layers) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	for _, i := range l.infos {
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (l *layers) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	l.asked = append(l.asked, key)
	if l.slow[key] {
		<-ctx.Done()
		return snapshots.Usage{}, ctx.Err()
	}
	return snapshots.Usage{Size: 10, Inodes: 1}, nil
}

// The writable layer of one container is as large as it likes. It does not keep the others from
// being measured, and the layers of images are measured once.
func TestALayerThatTakesLongDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &layers{slow: map[string]bool{"b": true}}
		for _, name := range []string{"a", "b", "c", "d"} {
			l.infos = append(l.infos, snapshots.Info{Name: name, Kind: snapshots.KindActive})
		}
		l.infos = append(l.infos, snapshots.Info{Name: "i", Kind: snapshots.KindCommitted}, snapshots.Info{Name: "v", Kind: snapshots.KindView})
		var s sampler
		round := func() (images, containers image.Space) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			i, c, err := s.round(ctx, l)
			if err != nil {
				t.Fatal(err)
			}
			return i, c
		}
		if i, c := round(); i.Bytes != 10 || c.Bytes != 10 {
			t.Errorf("first round: %v %v", i, c)
		}
		if i, c := round(); i.Bytes != 10 || c.Bytes != 30 || c.Inodes != 3 {
			t.Errorf("second round: %v %v", i, c)
		}
		if n := strings.Count(strings.Join(l.asked, ""), "i"); n != 1 {
			t.Errorf("the layer of an image was measured %d times", n)
		}
		l.infos = l.infos[1:] // a is gone
		if _, c := round(); c.Bytes != 20 {
			t.Errorf("what was removed still counts: %v", c)
		}
	})
}

// What the statistics of a container have measured is not walked a second time, which costs as
// much, until they would have measured it again.
func TestALayerIsWalkedOnceForBothWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &layers{infos: []snapshots.Info{{Name: "a", Kind: snapshots.KindActive}, {Name: "b", Kind: snapshots.KindActive}}}
		i := open(nil, Config{Snapshotter: "overlayfs"})
		i.Measured("overlayfs", "a", snapshots.Usage{Size: 7, Inodes: 3}, time.Second)
		i.Measured("overlayfs", "gone", snapshots.Usage{Size: 1000}, time.Second)
		i.Measured("other", "b", snapshots.Usage{Size: 1000}, time.Second)
		for range 2 {
			if _, c, err := i.usage.round(t.Context(), l); err != nil || c.Bytes != 17 || c.Inodes != 4 {
				t.Errorf("%v, %v", c, err)
			}
		}
		if !slices.Equal(l.asked, []string{"b", "b"}) {
			t.Errorf("walked: %q", l.asked)
		}
		i.Measured("overlayfs", "b", snapshots.Usage{Size: 8}, time.Minute) // it is measured again in 20 minutes
		time.Sleep(measuredLately)
		if _, c, err := i.usage.round(t.Context(), l); err != nil || c.Bytes != 18 || len(l.asked) != 3 {
			t.Errorf("what was measured long ago: %v, %v, walked: %q", c, err, l.asked)
		}
	})
}

// unread drops what an import says of how far it has come.
func unread(int64, int64) {}

func TestAnImageOfACheckpointIsKnown(t *testing.T) {
	i := store(t)
	if st := imported(t, i, imageOf(t, v1Config(), testimage.File{Name: "a"})); st.Checkpoint {
		t.Errorf("%+v", st)
	}
	marked, ok := mutate.Annotations(imageOf(t, v1Config(), testimage.File{Name: "b"}), map[string]string{"org.criu.checkpoint.container.name": "c"}).(v1.Image)
	if !ok {
		t.Fatal("it is not an image")
	}
	if st := imported(t, i, marked); !st.Checkpoint {
		t.Errorf("%+v", st)
	}
}
