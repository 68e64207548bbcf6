// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// archiveMaker makes OCI archives whose parts need not fit together.
type archiveMaker struct {
	index ocispec.Index
	files map[string][]byte // by the path in the archive
}

func newArchive() *archiveMaker {
	return &archiveMaker{
		index: ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex},
		files: map[string][]byte{ocispec.ImageLayoutFile: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
	}
}

// madeImage is an image of one layer before it is written. What is changed of it fits no longer.
type madeImage struct {
	layer     []byte // as the archive has it
	layerType string
	diffIDs   []digest.Digest
	config    []byte // made of the others if it is nil
	platform  ocispec.Platform
	manifest  ocispec.Manifest
}

func here() ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func elsewhere() ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: "s390x"} }

// oneLayer makes an image with a file, whose text makes it different from others.
func oneLayer(t *testing.T, text string) *madeImage {
	t.Helper()
	plain := tarOf(t, &tar.Header{Name: "file", Mode: 0o644, Size: int64(len(text))}, text)
	return &madeImage{layer: gzipped(t, plain), layerType: ocispec.MediaTypeImageLayerGzip, diffIDs: []digest.Digest{digest.FromBytes(plain)}, platform: here()}
}

func tarOf(t *testing.T, h *tar.Header, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	try(t, w.WriteHeader(h))
	_, err := w.Write([]byte(text))
	try(t, err)
	try(t, w.Close())
	return b.Bytes()
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	try(t, err)
	try(t, w.Close())
	return out.Bytes()
}

// blob adds a blob and returns its descriptor.
func (a *archiveMaker) blob(mediaType string, b []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	a.files[blobPath(d)] = b
	return d
}

func blobPath(d ocispec.Descriptor) string { return "blobs/sha256/" + d.Digest.Encoded() }

func (a *archiveMaker) json(t *testing.T, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	b, err := json.Marshal(v)
	try(t, err)
	return a.blob(mediaType, b)
}

// add adds the blobs of an image, and returns the descriptor of its manifest.
func (a *archiveMaker) add(t *testing.T, m *madeImage) ocispec.Descriptor {
	t.Helper()
	if m.config == nil {
		b, err := json.Marshal(ocispec.Image{
			Platform: m.platform,
			Config:   ocispec.ImageConfig{Cmd: []string{"/file"}},
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: m.diffIDs},
		})
		try(t, err)
		m.config = b
	}
	m.manifest.SchemaVersion, m.manifest.MediaType = 2, ocispec.MediaTypeImageManifest
	m.manifest.Config = a.blob(ocispec.MediaTypeImageConfig, m.config)
	m.manifest.Layers = []ocispec.Descriptor{a.blob(m.layerType, m.layer)}
	return a.json(t, ocispec.MediaTypeImageManifest, m.manifest)
}

// list puts an image, or an index of images, into the index of the archive.
func (a *archiveMaker) list(d ocispec.Descriptor, refName string) {
	if refName != "" {
		d.Annotations = map[string]string{ocispec.AnnotationRefName: refName}
	}
	a.index.Manifests = append(a.index.Manifests, d)
}

// write writes the archive, and returns its path.
func (a *archiveMaker) write(t *testing.T) string {
	t.Helper()
	var err error
	a.files[ocispec.ImageIndexFile], err = json.Marshal(a.index)
	try(t, err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(a.files)) {
		try(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(a.files[name]))}))
		_, err := w.Write(a.files[name])
		try(t, err)
	}
	try(t, w.Close())
	path := filepath.Join(t.TempDir(), "archive.tar")
	try(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// of makes the archive of one image.
func archiveOf(t *testing.T, m *madeImage, refName string) *archiveMaker {
	t.Helper()
	a := newArchive()
	a.list(a.add(t, m), refName)
	return a
}

// has lists what a store has: the names with their digests, the blobs and the layers.
func has(t *testing.T, i *Store) (names map[string]string, rest []string) {
	t.Helper()
	ctx := connection.Namespaced(t.Context())
	all, err := i.client.ImageService().List(ctx)
	try(t, err)
	names = map[string]string{}
	for _, img := range all {
		names[img.Name] = img.Target.Digest.String()
	}
	try(t, i.client.ContentStore().Walk(ctx, func(info content.Info) error {
		rest = append(rest, "blob "+info.Digest.String())
		return nil
	}))
	coming, err := i.client.ContentStore().ListStatuses(ctx)
	try(t, err)
	for _, st := range coming {
		rest = append(rest, "beginning "+st.Ref)
	}
	try(t, i.client.SnapshotService(i.Snapshotter()).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		rest = append(rest, "layer "+info.Name)
		return nil
	}))
	slices.Sort(rest)
	return names, rest
}

// unname removes all names of all images.
func unname(t *testing.T, i *Store) {
	t.Helper()
	all, err := i.client.ImageService().List(connection.Namespaced(t.Context()))
	try(t, err)
	for _, img := range all {
		n, _ := image.NewName(img.Name, img.Target, "")
		try(t, i.Delete(t.Context(), n))
	}
}

const archivedName = "berth.test/archived:1"

// badArchives are archives of an image that cannot be used, each with the name of a good one.
var badArchives = map[string]func(t *testing.T, m *madeImage) *archiveMaker{
	"the digest of a layer lies": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		a.files[blobPath(m.manifest.Layers[0])] = oneLayer(t, "other").layer
		return a
	},
	"a layer is cut off": func(t *testing.T, m *madeImage) *archiveMaker {
		m.layer = m.layer[:len(m.layer)/2]
		return archiveOf(t, m, archivedName)
	},
	"a layer is empty": func(t *testing.T, m *madeImage) *archiveMaker {
		m.layer = nil
		return archiveOf(t, m, archivedName)
	},
	"a layer is missing": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		delete(a.files, blobPath(m.manifest.Layers[0]))
		return a
	},
	"a diff ID is wrong": func(t *testing.T, m *madeImage) *archiveMaker {
		m.diffIDs = []digest.Digest{digest.FromString("other")}
		return archiveOf(t, m, archivedName)
	},
	"there are more diff IDs than layers": func(t *testing.T, m *madeImage) *archiveMaker {
		m.diffIDs = append(m.diffIDs, m.diffIDs[0])
		return archiveOf(t, m, archivedName)
	},
	"a layer is not a tar": func(t *testing.T, m *madeImage) *archiveMaker {
		text := []byte(strings.Repeat("not a tar ", 1000))
		m.layer, m.diffIDs = gzipped(t, text), []digest.Digest{digest.FromBytes(text)}
		return archiveOf(t, m, archivedName)
	},
	"a layer is bad gzip": func(t *testing.T, m *madeImage) *archiveMaker {
		m.layer[len(m.layer)-6] ^= 0xff
		return archiveOf(t, m, archivedName)
	},
	"a layer is bad zstd": func(t *testing.T, m *madeImage) *archiveMaker {
		m.layer, m.layerType = append([]byte{0x28, 0xb5, 0x2f, 0xfd}, "and no frame"...), ocispec.MediaTypeImageLayerZstd
		return archiveOf(t, m, archivedName)
	},
	"a layer is of a type that nothing unpacks": func(t *testing.T, m *madeImage) *archiveMaker {
		m.layerType = "application/vnd.example.rpm"
		return archiveOf(t, m, archivedName)
	},
	"a hard link leads to nothing": func(t *testing.T, m *madeImage) *archiveMaker {
		plain := tarOf(t, &tar.Header{Name: "link", Typeflag: tar.TypeLink, Linkname: "nothing"}, "")
		m.layer, m.diffIDs = gzipped(t, plain), []digest.Digest{digest.FromBytes(plain)}
		return archiveOf(t, m, archivedName)
	},
	"a file is where a directory has to be": func(t *testing.T, m *madeImage) *archiveMaker {
		plain := append(tarOf(t, &tar.Header{Name: "a", Mode: 0o644}, "")[:512], tarOf(t, &tar.Header{Name: "a/b", Mode: 0o644}, "")...)
		m.layer, m.diffIDs = gzipped(t, plain), []digest.Digest{digest.FromBytes(plain)}
		return archiveOf(t, m, archivedName)
	},
	"the size of a layer lies": func(t *testing.T, m *madeImage) *archiveMaker {
		a := newArchive()
		a.add(t, m)
		m.manifest.Layers[0].Size++
		a.list(a.json(t, ocispec.MediaTypeImageManifest, m.manifest), archivedName)
		return a
	},
	"the configuration is not JSON": func(t *testing.T, m *madeImage) *archiveMaker {
		m.config = []byte("not JSON")
		return archiveOf(t, m, archivedName)
	},
	"the configuration is missing": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		delete(a.files, blobPath(m.manifest.Config))
		return a
	},
	"the manifest is missing": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		delete(a.files, blobPath(a.index.Manifests[0]))
		return a
	},
	"the manifest is not JSON": func(t *testing.T, m *madeImage) *archiveMaker {
		a := newArchive()
		a.list(a.blob(ocispec.MediaTypeImageManifest, []byte("not JSON")), archivedName)
		return a
	},
	"it is for another platform": func(t *testing.T, m *madeImage) *archiveMaker {
		m.platform = elsewhere()
		return archiveOf(t, m, archivedName)
	},
	"the index says that it is for another platform": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		p := elsewhere()
		a.index.Manifests[0].Platform = &p
		return a
	},
	"all images of its index are for other platforms": func(t *testing.T, m *madeImage) *archiveMaker {
		a := newArchive()
		d, p := a.add(t, m), elsewhere()
		d.Platform = &p
		a.list(a.json(t, ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{d}}), archivedName)
		return a
	},
	"the image of its index for this node is missing": func(t *testing.T, m *madeImage) *archiveMaker {
		a := newArchive()
		d, p := a.add(t, m), here()
		d.Platform = &p
		delete(a.files, blobPath(d))
		a.list(a.json(t, ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{d}}), archivedName)
		return a
	},
	"another image of it is bad": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		bad := oneLayer(t, "bad")
		bad.diffIDs = m.diffIDs
		bad.layer = bad.layer[:20]
		bad.diffIDs = []digest.Digest{digest.FromString("bad")}
		a.list(a.add(t, bad), "berth.test/bad:1")
		return a
	},
	"two images of it have one name": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		a.list(a.add(t, oneLayer(t, "second")), archivedName)
		return a
	},
	"its name is not a reference": func(t *testing.T, m *madeImage) *archiveMaker { return archiveOf(t, m, "Not:A/Name") },
	"its name has another digest": func(t *testing.T, m *madeImage) *archiveMaker {
		return archiveOf(t, m, "berth.test/archived@"+digest.FromString("other").String())
	},
	"it is cut off": func(t *testing.T, m *madeImage) *archiveMaker {
		a := archiveOf(t, m, archivedName)
		a.files["zero"] = make([]byte, 1<<20)
		return a
	},
}

// The name of an image that worked stood for what a failed import had left, which could not be made
// a container of: PROPERTIES 58.
func TestAnImportThatFailsChangesNothing(t *testing.T) {
	i := store(t)
	good := archiveOf(t, oneLayer(t, "good"), archivedName).write(t)
	before, _, err := i.Import(t.Context(), good, "", unread)
	if err != nil || len(before) != 1 {
		t.Fatalf("%v %v", before, err)
	}
	try(t, i.collect(connection.Namespaced(t.Context()))) // the index of the archive
	names, rest := has(t, i)
	for what, bad := range badArchives {
		path := bad(t, oneLayer(t, "bad image")).write(t)
		if what == "it is cut off" {
			try(t, os.Truncate(path, 1<<20))
		}
		st, _, err := i.Import(t.Context(), path, "", unread)
		if err == nil {
			t.Errorf("%s: imported %v", what, st)
		}
		after, left := has(t, i)
		if !maps.Equal(names, after) {
			t.Errorf("%s: the names are %v, and were %v", what, after, names)
		}
		if !slices.Equal(rest, left) {
			t.Errorf("%s: on the disk are\n%s\nand were\n%s", what, strings.Join(left, "\n"), strings.Join(rest, "\n"))
		}
		if b, err := i.ReadFiles(t.Context(), image.Root{ChainID: before[0].ChainID}, 100, "file"); err != nil || string(b[0]) != "good" {
			t.Errorf("%s: the good image has %q: %v", what, b, err)
		}
	}
}

// The names that skopeo, buildah and podman write are completed as those are that people ask for;
// what is only a tag names nothing: PROPERTIES 58.
func TestTheNamesOfAnArchiveAreThoseThatPeopleAskFor(t *testing.T) {
	i := store(t)
	for refName, want := range map[string]string{
		"bbx:latest":       "docker.io/library/bbx:latest",
		"quay.io/a/notag":  "quay.io/a/notag:latest",
		"localhost/a:1":    "localhost/a:1",
		"r.example:5000/a": "r.example:5000/a:latest",
		"latest":           "",
		"1.0":              "",
		"":                 "",
	} {
		path := archiveOf(t, oneLayer(t, "named "+refName), refName).write(t)
		st, left, err := i.Import(t.Context(), path, "", unread)
		if want == "" {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "--ref") || len(st) != 0 {
				t.Errorf("%q: %v %v %v", refName, st, left, err)
			}
			continue
		}
		if err != nil || len(st) != 1 || st[0].Name.String() != want || len(left) != 0 {
			t.Errorf("%q: %v %v %v", refName, st, left, err)
		}
		all, _ := has(t, i)
		exact := want[:strings.LastIndex(want, ":")] + "@" + st[0].Name.Target().Digest.String()
		for _, name := range []string{want, exact, st[0].ID} {
			if all[name] != st[0].Name.Target().Digest.String() {
				t.Errorf("%q: %s stands for %q", refName, name, all[name])
			}
		}
	}
}

// What --ref names was the index of the archive, or the last image without a name: PROPERTIES 58.
func TestAReferenceNamesTheOneImageThatItCanBeFor(t *testing.T) {
	const ref = "docker.io/library/given:latest"
	i := store(t)
	type listed struct {
		name string
		at   ocispec.Platform
	}
	for what, c := range map[string]struct {
		images []listed
		want   []string // what the names stand for: the number of an image in order
		left   int
		fails  string
	}{
		"one without a name":                {images: []listed{{"", here()}}, want: []string{ref + " 0"}},
		"one with a tag":                    {images: []listed{{"latest", here()}}, want: []string{ref + " 0"}},
		"one with a name":                   {images: []listed{{"r.example/a:1", here()}}, want: []string{ref + " 0", "r.example/a:1 0"}},
		"one of two without a name":         {images: []listed{{"r.example/a:1", here()}, {"", here()}}, want: []string{ref + " 1", "r.example/a:1 0"}},
		"the one for this node":             {images: []listed{{"", here()}, {"", elsewhere()}}, want: []string{ref + " 0"}, left: 1},
		"the one for this node, the second": {images: []listed{{"", elsewhere()}, {"", here()}}, want: []string{ref + " 1"}, left: 1},
		"two without a name":                {images: []listed{{"", here()}, {"", here()}}, fails: "2 images"},
		"two with names":                    {images: []listed{{"r.example/a:1", here()}, {"r.example/b:1", here()}}, fails: "--ref"},
		"none for this node":                {images: []listed{{"", elsewhere()}}, fails: "linux/s390x"},
		"one name for two platforms":        {images: []listed{{"r.example/a:1", elsewhere()}, {"r.example/a:1", here()}}, want: []string{ref + " 1", "r.example/a:1 1"}, left: 1},
	} {
		a := newArchive()
		number := map[string]string{}
		for n, l := range c.images {
			m := oneLayer(t, string(rune('0'+n)))
			m.platform = l.at
			d := a.add(t, m)
			number[d.Digest.String()] = string(rune('0' + n))
			a.list(d, l.name)
		}
		st, left, err := i.Import(t.Context(), a.write(t), ref, unread)
		var got []string
		for _, s := range st {
			got = append(got, s.Name.String()+" "+number[s.Name.Target().Digest.String()])
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) || len(left) != c.left {
			t.Errorf("%s: %v, left out %v, %v", what, got, left, err)
		}
		if (c.fails != "") != errdefs.IsInvalidArgument(err) || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", what, err)
		}
		names, _ := has(t, i)
		for name, target := range names {
			if at := strings.LastIndex(name, "@"); at > 0 && name[at+1:] != target {
				t.Errorf("%s: %s stands for %s", what, name, target)
			}
		}
		if c.fails != "" && len(names) > 0 {
			t.Errorf("%s: names were made: %v", what, names)
		}
		unname(t, i)
	}
}

// An image of an archive that is for another node is named with the reason. One that names no
// platform, as an artifact, is for each: PROPERTIES 58.
func TestWhatIsLeftOutOfAnArchiveIsSaid(t *testing.T) {
	i := store(t)
	a := newArchive()
	other := oneLayer(t, "other")
	other.platform = elsewhere()
	a.list(a.add(t, other), "r.example/other:1")
	a.list(a.add(t, oneLayer(t, "here")), "r.example/here:1")
	a.list(a.add(t, oneLayer(t, "unnamed")), "")
	empty := a.blob(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	file := a.blob("text/plain", []byte("a file"))
	file.Annotations = map[string]string{ocispec.AnnotationTitle: "f"}
	a.list(a.json(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example",
		Config:       empty,
		Layers:       []ocispec.Descriptor{file},
	}), "r.example/artifact:1")
	st, left, err := i.Import(t.Context(), a.write(t), "", unread)
	var names []string
	for _, s := range st {
		names = append(names, s.Name.String())
	}
	if err != nil || !slices.Equal(names, []string{"r.example/here:1", "r.example/artifact:1"}) {
		t.Errorf("%v %v", names, err)
	}
	said := strings.Join(left, "\n")
	if len(left) != 2 || !strings.Contains(said, "r.example/other:1") || !strings.Contains(said, "linux/s390x") || !strings.Contains(said, "no name") {
		t.Errorf("%s", said)
	}
	for _, s := range st {
		if parts, err := i.Verify(t.Context(), s.Name, false); err != nil || slices.ContainsFunc(parts, func(p image.Part) bool { return p.Outcome != image.PartWhole }) {
			t.Errorf("%s: %v %v", s.Name, parts, err)
		}
	}
}

// An image that another client had stored, and that cannot be unpacked, was whole as long as its
// blobs were: PROPERTIES 58.
func TestAnImageThatCannotBeUnpackedIsNotWhole(t *testing.T) {
	i := store(t)
	for what, c := range map[string]struct {
		make    func(t *testing.T, m *madeImage) *archiveMaker
		becomes string
	}{
		"a layer is missing":   {badArchives["a layer is missing"], image.PartWrong},
		"a diff ID is wrong":   {badArchives["a diff ID is wrong"], image.PartWrong},
		"a layer is not a tar": {badArchives["a layer is not a tar"], image.PartWrong},
		"nothing":              {func(t *testing.T, m *madeImage) *archiveMaker { return archiveOf(t, m, archivedName) }, image.PartRepaired},
	} {
		f, err := os.Open(c.make(t, oneLayer(t, what)).write(t))
		try(t, err)
		_, err = i.client.Client().Import(connection.Namespaced(t.Context()), f, containerd.WithSkipMissing())
		try(t, errors.Join(err, f.Close()))
		stands, err := i.Get(t.Context(), archivedName)
		try(t, err)
		for _, repair := range []bool{false, true} {
			want := image.PartUnknown
			if repair {
				want = c.becomes
			}
			parts, err := i.Verify(t.Context(), stands.Name, repair)
			if err != nil || len(parts) == 0 || parts[len(parts)-1].Kind != "layer" || parts[len(parts)-1].Outcome != want {
				t.Errorf("%s is wrong, with repair %v: %+v %v", what, repair, parts, err)
			}
		}
		parts, err := i.Verify(t.Context(), stands.Name, false)
		whole := !slices.ContainsFunc(parts, func(p image.Part) bool { return p.Outcome != image.PartWhole })
		if err != nil || whole != (what == "nothing") {
			t.Errorf("%s is wrong, in the end: %+v %v", what, parts, err)
		}
	}
}

// A pull named an artifact before its files were laid out, and an image before the layers that were
// there were compared with their indexes: PROPERTIES 58.
func TestAPullNamesWhatCanBeUsed(t *testing.T) {
	i := store(t)
	reg := testregistry.Start(t)
	art, err := testimage.Artifact(testimage.ArtifactConfig{Type: "application/vnd.example"}, testimage.Blob{Title: "f", Body: []byte("f")})
	try(t, err)
	for ref, at := range map[string]stage{
		reg.Push("a/image:1", imageOf(t, v1Config())): stageLayered,
		reg.Push("a/artifact:1", art):                 stagePlacing,
	} {
		ctx, done, err := i.lease(t.Context(), "")
		try(t, err)
		p := pulling{Puller: i.Puller, Sink: unseen{}, attempt: attempt{at: at}, ref: ref, snapshotter: "native"}
		_, err = p.fetch(ctx)
		try(t, err)
		if names, _ := has(t, i); len(names) > 0 {
			t.Errorf("%s: names were made: %v", ref, names)
		}
		done()
		st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
		try(t, err)
		if names, _ := has(t, i); len(names) != 3 || names[ref] != st.Name.Target().Digest.String() || names[st.ID] != names[ref] {
			t.Errorf("%s: %v", ref, names)
		}
		unname(t, i)
	}
}

// A bad archive in the directory of archives took the name of an image as well: PROPERTIES 58.
func TestABadArchiveThatIsPreloadedChangesNothing(t *testing.T) {
	i := store(t)
	s := image.New(i, image.Config{Logger: i.cfg.Logger})
	_, err := s.Import(t.Context(), archiveOf(t, oneLayer(t, "good"), archivedName).write(t), "")
	try(t, err)
	before, err := s.Resolve(archivedName)
	try(t, err)
	dir := t.TempDir()
	try(t, os.Chmod(dir, 0o700))
	try(t, os.Rename(badArchives["a diff ID is wrong"](t, oneLayer(t, "bad")).write(t), filepath.Join(dir, "bad.tar")))
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	p := image.NewPreload(s, image.PreloadConfig{Dir: dir, Memory: filepath.Join(t.TempDir(), "memory"), Ready: func(context.Context) error {
		if asked++; asked > 2 { // of the second look: the first one has tried to import it
			cancel()
		}
		return ctx.Err()
	}})
	p.Look(dir)
	try(t, p.Run(ctx))
	try(t, s.Refresh(t.Context()))
	if after, err := s.Resolve(archivedName); err != nil || after.ID != before.ID || after.Pinned {
		t.Errorf("%+v %v", after, err)
	}
}

// The beginning of a blob that a killed import had left was gone on with, whatever was in it.
func TestAnImportDoesNotGoOnWhereAnotherWasCutOff(t *testing.T) {
	i := store(t)
	m := oneLayer(t, "text")
	a := archiveOf(t, m, archivedName)
	w, err := i.client.ContentStore().Writer(connection.Namespaced(t.Context()), content.WithRef("tar-"+blobPath(m.manifest.Layers[0])))
	try(t, err)
	_, err = w.Write([]byte("another file"))
	try(t, errors.Join(err, w.Close()))
	if st, _, err := i.Import(t.Context(), a.write(t), "", unread); err != nil || len(st) != 1 {
		t.Errorf("%v %v", st, err)
	}
}
