// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// service makes an image service of a store.
func service(t *testing.T, b image.Backend) *image.Service {
	t.Helper()
	s := image.New(b, image.Config{Logger: slog.New(slog.DiscardHandler)})
	try(t, s.Refresh(t.Context()))
	return s
}

// idOf returns the digest of an image's configuration.
func idOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	try(t, err)
	return h.String()
}

func digestOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.Digest()
	try(t, err)
	return h.String()
}

func pullInto(t *testing.T, s *image.Service, ref string) {
	t.Helper()
	_, err := s.Pull(t.Context(), ref, nil, image.Caller{})
	try(t, err)
}

func forged(t *testing.T, of v1.Image, annotations map[string]string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := testimage.Forged(of, annotations, layers...)
	try(t, err)
	return img
}

// PROPERTIES 57: an archive with two images of one name for one platform is refused, and no digest
// finds the other one: the digest of the first ran the second.
func TestTwoImagesOfOneNameInAnArchiveKeepTheirDigests(t *testing.T) {
	s := service(t, store(t))
	one := imageOf(t, v1.Config{Cmd: []string{"/one"}}, testimage.File{Name: "one"})
	two := imageOf(t, v1.Config{Cmd: []string{"/two"}}, testimage.File{Name: "two"})
	path := filepath.Join(t.TempDir(), "two.tar")
	try(t, testimage.WriteOCIArchive(path, "berth.test/two:1", one, two))
	if in, err := s.Import(t.Context(), path, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("two images of this platform got one name: %+v %v", in, err)
	}
	for _, img := range []v1.Image{one, two} {
		got, err := s.Resolve("berth.test/two@" + digestOf(t, img))
		if !errdefs.IsNotFound(err) && got.ID != idOf(t, img) {
			t.Errorf("%s is image %s, want %s: %v", digestOf(t, img), got.ID, idOf(t, img), err)
		}
	}
}

// PROPERTIES 57: the checkpoint that a name stands for is restored, whatever other manifest claims
// its configuration: the name that sorted first gave the archive.
func TestACheckpointIsThatOfItsName(t *testing.T) {
	s, reg := service(t, store(t)), testregistry.Start(t)
	mine, other := tarred(t, "config.dump", "mine"), tarred(t, "config.dump", "theirs")
	signed := checkpointOf(t, mine, testimage.CheckpointOfCRIU)
	layers, err := checkpointOf(t, other, testimage.CheckpointOfCRIU).Layers()
	try(t, err)
	name := reg.Push("team/signed:1", signed)
	pullInto(t, s, name)
	pullInto(t, s, reg.Push("a/evil:1", forged(t, signed, map[string]string{testimage.CheckpointOfCRIU: "c"}, layers...)))
	img, err := s.Resolve(name)
	try(t, err)
	r, err := s.Checkpoint(t.Context(), img.ID)
	try(t, err)
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, mine) {
		t.Errorf("%s is restored from another archive: %q %v", name, b, err)
	}
	if want := digestOf(t, signed); img.ID != want {
		t.Errorf("its ID is %s, want the digest of its manifest, %s", img.ID, want)
	}
}

// PROPERTIES 57: a manifest that claims the configuration of another image changes nothing about
// that image: it made it a checkpoint, which no container could be made from.
func TestAManifestThatClaimsAnImagesConfigurationLeavesTheImageAlone(t *testing.T) {
	s, reg := service(t, store(t)), testregistry.Start(t)
	public := imageOf(t, v1.Config{Cmd: []string{"/x"}}, testimage.File{Name: "x"})
	name := reg.Push("team/public:1", public)
	pullInto(t, s, name)
	before, err := s.Resolve(name)
	try(t, err)
	layers, err := checkpointOf(t, tarred(t, "config.dump", "{}"), testimage.CheckpointOfCRIU).Layers()
	try(t, err)
	pullInto(t, s, reg.Push("a/evil:1", forged(t, public, map[string]string{testimage.CheckpointOfCRIU: "c"}, layers...)))
	for _, ref := range []string{name, before.ID} {
		if got, err := s.Resolve(ref); err != nil || got.Checkpoint || got.ID != before.ID || got.Size != before.Size {
			t.Errorf("%s: %+v %v", ref, got, err)
		}
	}
}

// PROPERTIES 57: a layer is repaired from the blob of an image that has it whole, and an image is
// removed for its own lost blob alone: the last image that claimed the layer decided.
func TestARepairAsksEveryImageThatHasTheLayer(t *testing.T) {
	n := kept(t)
	s, reg := service(t, n.Store), testregistry.Start(t)
	good := twoLayers(t)
	ref := reg.Push("team/good:1", good)
	pullInto(t, s, ref)
	img, err := s.Resolve(ref)
	try(t, err)
	n.synced(t, img.ChainID)
	var junk []v1.Layer
	for _, text := range []string{"junk", "more of it"} {
		l, err := testimage.Layer(testimage.File{Name: "x", Body: []byte(text)})
		try(t, err)
		junk = append(junk, l)
	}
	evil := reg.Push("z/evil:1", forged(t, good, nil, junk...))
	pullInto(t, s, evil)
	n.lose(t, img.ChainID, false)
	parts, err := n.Verify(t.Context(), img.Name, true)
	try(t, err)
	if !slices.ContainsFunc(parts, func(p image.Part) bool { return p.Outcome == image.PartRepaired }) {
		t.Errorf("verified: %+v", parts)
	}
	n.whole(t, img.ChainID, "repaired")
	for _, indexes := range []bool{false, true} {
		run := n.unclean(t)
		n.lose(t, img.ChainID, indexes)
		settled := run()
		n.whole(t, img.ChainID, "after an unclean boot")
		settled()
	}
	if _, err := n.Get(t.Context(), ref); err != nil {
		t.Errorf("the image with the whole blob: %v", err)
	}
}

// moving is containerd's list of images, in which somebody else moves or removes all names before a
// call.
type moving struct {
	images.Store
	left   int // calls until then
	meddle func(ctx context.Context, s images.Store) error
	t      *testing.T
}

func (m *moving) call(ctx context.Context) {
	if m.left--; m.left == 0 {
		if err := m.meddle(ctx, m.Store); err != nil {
			m.t.Errorf("meddle: %v", err)
		}
	}
}

func (m *moving) Get(ctx context.Context, name string) (images.Image, error) {
	m.call(ctx)
	return m.Store.Get(ctx, name)
}

func (m *moving) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	m.call(ctx)
	return m.Store.List(ctx, filters...)
}

func (m *moving) Create(ctx context.Context, img images.Image) (images.Image, error) {
	m.call(ctx)
	return m.Store.Create(ctx, img)
}

func (m *moving) Update(ctx context.Context, img images.Image, fields ...string) (images.Image, error) {
	m.call(ctx)
	return m.Store.Update(ctx, img, fields...)
}

func (m *moving) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	m.call(ctx)
	return m.Store.Delete(ctx, name, opts...)
}

// PROPERTIES 57: whenever names move, or are removed, in a pull or an import, what was pulled or
// imported has its name when the call ends, and its content is there. The second look at the name
// found another image, or none, so that pulls and imports failed.
func TestNamesThatMoveInAPullOrAnImportChangeNothing(t *testing.T) {
	plain := store(t)
	c := plain.client.Client()
	m := &moving{Store: c.ImageService(), t: t}
	client, err := containerd.New("", containerd.WithDefaultNamespace(connection.Namespace), containerd.WithServices(
		containerd.WithContentStore(c.ContentStore()),
		containerd.WithImageStore(m),
		containerd.WithDiffService(c.DiffService()),
		containerd.WithLeasesService(c.LeasesService()),
		containerd.WithNamespaceService(c.NamespaceService()),
		containerd.WithIntrospectionService(c.IntrospectionService()),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"native": c.SnapshotService("native")}),
	))
	try(t, err)
	i, err := New(connection.Through(client), plain.cfg)
	try(t, err)
	other := imported(t, plain, imageOf(t, v1.Config{Cmd: []string{"/other"}}, testimage.File{Name: "other"}))
	kept := other.NamesGiven()[:2] // its ID and its digest
	mine := imageOf(t, v1.Config{Cmd: []string{"/mine"}}, testimage.File{Name: "mine"})
	ref := testregistry.Start(t).Push("team/mine:1", mine)
	path := archived(t, mine)
	ctx := connection.Namespaced(t.Context())
	for how, meddle := range map[string]func(ctx context.Context, s images.Store, img images.Image) error{
		"moved": func(ctx context.Context, s images.Store, img images.Image) error {
			img.Target = other.Name.Target()
			_, err := s.Update(ctx, img, "target")
			return err
		},
		"removed": func(ctx context.Context, s images.Store, img images.Image) error {
			return s.Delete(ctx, img.Name, images.SynchronousDelete())
		},
	} {
		m.meddle = func(ctx context.Context, s images.Store) error {
			all, err := s.List(ctx)
			for _, img := range all {
				if !slices.ContainsFunc(kept, func(n image.Name) bool { return n.String() == img.Name }) {
					err = errors.Join(err, meddle(ctx, s, img))
				}
			}
			return err
		}
		for name, run := range map[string]func() (image.Stored, error){
			"pull": func() (image.Stored, error) { return i.Pull(ctx, ref, image.Credentials{}, "", nil) },
			"import": func() (image.Stored, error) {
				all, _, err := i.Import(ctx, path, "", unread)
				if err != nil {
					return image.Stored{}, err
				}
				return all[0], nil
			},
		} {
			for at := 1; ; at++ {
				m.left = at
				st, err := run()
				if err != nil || st.ID != idOf(t, mine) {
					t.Errorf("%s, %s before call %d: %+v %v", name, how, at, st, err)
				}
				if m.left > 0 {
					break
				}
				collect(t, plain)
				got, err := plain.Get(ctx, st.Name.String())
				if err == nil {
					err = plain.Unpack(ctx, got.Name, "native")
				}
				if err != nil || got.ID != st.ID {
					t.Errorf("%s, %s before call %d: %s is %s: %v", name, how, at, st.Name, got.ID, err)
				}
			}
		}
	}
}

// PROPERTIES 57: no document is both a configuration and the manifest of an artifact or a
// checkpoint: its digest would be the ID of two images.
func TestAManifestIsNotAConfiguration(t *testing.T) {
	const both = `{"schemaVersion":2,"rootfs":{"type":"layers","diff_ids":[]},"config":{"mediaType":"application/x"}}`
	if _, _, err := parseConfig([]byte(both)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a manifest as a configuration: %v", err)
	}
	for _, m := range []manifestForNode{
		{
			Manifest: ocispec.Manifest{Config: ocispec.Descriptor{MediaType: "application/x"}},
			desc:     ocispec.Descriptor{Digest: digest.FromString("a configuration")},
		},
		{checkpoint: true},
	} {
		if err := m.check(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
