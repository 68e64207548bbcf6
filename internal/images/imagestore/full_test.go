// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/embedtest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// smallDisk is a file system of its own with a containerd on it.
type smallDisk struct {
	*testing.T
	dir   string
	store *Store
}

// onSmallDisk starts a containerd on a file system of that many bytes, and an image store that
// reaches it in this process or through its socket.
func onSmallDisk(t *testing.T, size int, remote bool) *smallDisk {
	t.Helper()
	d := &smallDisk{T: t, dir: t.TempDir()}
	try(t, unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("size=%d", size)))
	t.Cleanup(func() { try(t, unix.Unmount(d.dir, unix.MNT_DETACH)) })
	cfg := embedtest.Config(t)
	cfg.Root = filepath.Join(d.dir, "root")
	server := embedtest.Start(t, cfg)
	client, root := server.Client(), cfg.Root
	if remote {
		var err error
		client, err = containerd.New(server.Address(), containerd.WithDefaultNamespace(connection.Namespace))
		try(t, err)
		t.Cleanup(func() { client.Close() })
		root = ""
	}
	var err error
	d.store, err = New(connection.Through(client), Config{
		Snapshotter:            "overlayfs",
		MaxConcurrentDownloads: 3,
		MaxConcurrentUnpacks:   3,
		Owner:                  "test",
		MountDir:               filepath.Join(cfg.State, "images"),
		Root:                   root,
		Logger:                 slog.New(slog.DiscardHandler),
	})
	try(t, err)
	return d
}

func (d *smallDisk) free() int64 {
	var st unix.Statfs_t
	try(d.T, unix.Statfs(d.dir, &st))
	return int64(st.Bavail) * st.Bsize
}

// fill leaves no page free, and returns what makes room again.
func (d *smallDisk) fill() (empty func()) {
	path := filepath.Join(d.dir, "ballast")
	f, err := os.Create(path)
	try(d.T, err)
	defer f.Close()
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.Fatal(err)
	}
	return func() { try(d.T, os.Remove(path)) }
}

// comesBack waits until that many bytes are free.
func (d *smallDisk) comesBack(what string, want int64) {
	d.Helper()
	for until := time.Now().Add(5 * time.Second); d.free() < want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			d.Fatalf("%s: %d bytes are free, want %d", what, d.free(), want)
		}
	}
}

// noise returns bytes that no compression makes smaller.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// slack is what the records of containerd may grow by, in bytes.
const slack = 1 << 20

// PROPERTIES 59: a pull that found the disk full kept it full. What it had fetched was kept for the
// next one, over a restart, and every other pull failed as well: the error was text by the time the
// pull decided on it.
func TestAFullDiskIsGivenBack(t *testing.T) {
	const size = 24 << 20
	unpacked := func(mib int) v1.Image {
		return imageOf(t, v1Config(), testimage.File{Name: "f", Mode: 0o644, Body: make([]byte, mib<<20)})
	}
	small := imageOf(t, v1Config(), testimage.File{Name: "small", Mode: 0o644, Body: noise(1 << 20)})
	fetched := func(body []byte) v1.Image {
		return artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "l", Body: body})
	}
	for what, c := range map[string]struct {
		img  v1.Image
		full bool // before the pull
	}{
		"fetch":    {img: fetched(noise(2 * size))},
		"unpack":   {img: unpacked(2 * size >> 20)},
		"metadata": {img: fetched(noise(size / 2)), full: true},
	} {
		for _, remote := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, remote %t", what, remote), func(t *testing.T) {
				d := onSmallDisk(t, size, remote)
				empty, reg := func() {}, testregistry.Start(t)
				other, ref := reg.Push("team/other:1", small), reg.Push("team/large:1", c.img)
				_, err := d.store.Pull(t.Context(), other, image.Credentials{}, "", nil)
				try(t, err)
				before := d.free()
				if c.full {
					empty = d.fill()
				}
				_, err = d.store.Pull(t.Context(), ref, image.Credentials{}, "", nil)
				if kind := image.Kind(err); kind != "disk_full" {
					t.Errorf("the pull ended as %s: %v", kind, err)
				}
				empty()
				d.comesBack("after the pull", before-slack)
				contents, err := d.store.Contents(t.Context())
				if err != nil || len(contents.Kept) != 0 || contents.Coming != 0 {
					t.Errorf("%+v, %d bytes, %v", contents.Kept, contents.Coming, err)
				}
				ctx := connection.Namespaced(t.Context())
				if left, err := d.store.client.LeasesService().List(ctx); err != nil || len(left) != 0 {
					t.Errorf("%+v %v", left, err)
				}
				for n := range 3 {
					next := imageOf(t, v1Config(), testimage.File{Name: strconv.Itoa(n), Mode: 0o644, Body: noise(1 << 20)})
					_, err := d.store.Pull(t.Context(), reg.Push(fmt.Sprintf("team/next:%d", n), next), image.Credentials{}, "", nil)
					try(t, err)
				}
			})
		}
	}
}

// PROPERTIES 59: what was read of an archive stayed until containerd happened to collect.
func TestAnImportThatFindsTheDiskFullGivesItBack(t *testing.T) {
	d := onSmallDisk(t, 24<<20, false)
	before := d.free()
	path := archived(t, imageOf(t, v1Config(),
		testimage.File{Name: "f", Mode: 0o644, Body: noise(16 << 20)},
		testimage.File{Name: "g", Mode: 0o644, Body: noise(32 << 20)},
	))
	_, _, err := d.store.Import(t.Context(), path, "", unread)
	if kind := image.Kind(err); kind != "disk_full" {
		t.Errorf("the import ended as %s: %v", kind, err)
	}
	d.comesBack("after the import", before-slack)
}

// narrow is a content store behind gRPC, in which a step of a blob finds the disk full, or a quota
// used up.
type narrow struct {
	content.Store
	write, commit error
}

func (n narrow) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := n.Store.Writer(ctx, opts...)
	return narrowWriter{w, n}, err
}

type narrowWriter struct {
	content.Writer
	of narrow
}

func (w narrowWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if st, _ := w.Status(); err == nil && st.Offset > 2<<20 {
		err = w.of.write
	}
	return n, err
}

func (w narrowWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	if w.of.commit != nil && size > 2<<20 {
		return w.of.commit
	}
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// PROPERTIES 59: a quota that is used up is a full disk, in a write and in a commit, also where
// only the text of it arrives.
func TestAQuotaThatIsUsedUpIsGivenBack(t *testing.T) {
	d := onSmallDisk(t, 64<<20, false)
	i := d.store
	c := i.client.Client()
	reg := testregistry.Start(t)
	for _, is := range []error{unix.EDQUOT, unix.ENOSPC} {
		told := status.Error(codes.Unknown, (&fs.PathError{Op: "write", Path: "data", Err: is}).Error())
		for what, n := range map[string]narrow{
			"write":  {c.ContentStore(), told, nil},
			"commit": {c.ContentStore(), nil, told},
		} {
			client, err := containerd.New("", containerd.WithDefaultNamespace(connection.Namespace), containerd.WithServices(
				containerd.WithContentStore(n),
				containerd.WithImageStore(c.ImageService()),
				containerd.WithDiffService(c.DiffService()),
				containerd.WithLeasesService(c.LeasesService()),
				containerd.WithNamespaceService(c.NamespaceService()),
				containerd.WithIntrospectionService(c.IntrospectionService()),
				containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"overlayfs": c.SnapshotService("overlayfs")}),
			))
			try(t, err)
			i.client = connection.Through(client)
			before := d.free()
			ref := reg.Push("team/large:1", artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "l", Body: noise(8 << 20)}))
			_, err = i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			if kind := image.Kind(err); kind != "disk_full" {
				t.Errorf("%s: the pull ended as %s: %v", what, kind, err)
			}
			d.comesBack(what, before-slack)
		}
	}
}

// PROPERTIES 59: what a pull that was cut off has left is told with its reason and its bytes,
// pruned, and dropped when the disk has no room for it, also by the next berth.
func TestWhatIsKeptForARetryIsBounded(t *testing.T) {
	const size, cut = 8 << 20, 4 << 20
	left := func(t *testing.T) (*smallDisk, *breaking) {
		d := onSmallDisk(t, 32<<20, false)
		b := &breaking{body: large(size)}
		b.breaks(t, d.store, b.body[:cut])
		return d, b
	}
	kept := func(d *smallDisk) (n int64) {
		c, err := d.store.Contents(d.Context())
		try(d.T, err)
		for _, k := range c.Kept {
			if k.Ref == "" || k.Reason == "" || !k.Until.After(time.Now()) {
				d.Errorf("%+v", k)
			}
			n += k.Bytes
		}
		if n > c.Coming+slack {
			d.Errorf("%d bytes are kept, and %d are there", n, c.Coming)
		}
		return n
	}
	for what, drop := range map[string]func(*smallDisk){
		"pruned": func(d *smallDisk) { try(d.T, d.store.DropKept(d.Context())) },
		"no room, measured": func(d *smallDisk) {
			defer d.fill()()
			_, err := d.store.Usage(d.Context())
			try(d.T, err)
		},
		"no room, the next berth": func(d *smallDisk) {
			defer d.fill()()
			d.store = next(d.T, d.store)
			try(d.T, d.store.Sweep(d.Context()))
		},
		"another pull finds the disk full": func(d *smallDisk) {
			ref := testregistry.Start(d).Push("team/full:1", artifactOf(d.T, testimage.ArtifactConfig{}, testimage.Blob{Title: "l", Body: noise(40 << 20)}))
			if _, err := d.store.Pull(d.Context(), ref, image.Credentials{}, "", nil); image.Kind(err) != "disk_full" {
				d.Error(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			d, _ := left(t)
			if n := kept(d); n < cut/2 || n > cut+slack {
				t.Fatalf("%d bytes are kept of %d", n, cut)
			}
			free := d.free()
			drop(d)
			if n := kept(d); n != 0 {
				t.Errorf("%d bytes are kept", n)
			}
			d.comesBack(what, free+cut/2)
		})
	}
	t.Run("more than its share", func(t *testing.T) {
		d, b := left(t)
		b.body = append(b.body, large(size)...)
		b.breaks(t, d.store, b.body[:3*cut])
		if n := kept(d); n != 0 {
			t.Errorf("%d bytes are kept of a file system of %d", n, 32<<20)
		}
	})
}

// PROPERTIES 59: what a pull that failed for another reason than a cut had fetched would make the
// next one fail as well.
func TestOnlyAPullThatWasCutOffIsKept(t *testing.T) {
	d := onSmallDisk(t, 64<<20, false)
	before := d.free()
	body := large(8 << 20)
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.FromBytes(body).String()) {
				_, _ = w.Write(bytes.ToUpper(body)) // not what the digest says
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	ref := reg.Push("team/wrong:1", artifactOf(t, testimage.ArtifactConfig{},
		testimage.Blob{Title: "l", Body: body}, testimage.Blob{Title: "m", Body: noise(4 << 20)}))
	if _, err := d.store.Pull(t.Context(), ref, image.Credentials{}, "", nil); err == nil {
		t.Fatal("pulled a blob that is not what its digest says")
	}
	d.comesBack("after the pull", before-slack)
}

// PROPERTIES 66: nothing is fetched that would not leave the reserve of the disk free, and the
// error says how much is missing.
func TestALayerThatWouldTakeTheReserveIsNotFetched(t *testing.T) {
	const size = 24 << 20
	d := onSmallDisk(t, size, false)
	img := layersOf(t, []testimage.File{{Name: "f", Mode: 0o644, Body: noise(size)}})
	digest, _ := blobOfLayer(t, img, 0)
	ref := testregistry.Start(t, serving(func() string { return digest }, func(http.ResponseWriter, *http.Request) {
		t.Error("the registry was asked for the layer")
	})).Push("team/large:1", img)
	_, err := d.store.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	if image.Kind(err) != "disk_full" || !strings.Contains(err.Error(), "stay free") {
		t.Errorf("%s: %v", image.Kind(err), err)
	}
	d.comesBack("after the pull", size-4*slack)
}
