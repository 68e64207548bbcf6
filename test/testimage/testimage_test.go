// SPDX-License-Identifier: Apache-2.0

package testimage_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/engine/embed"
	"berth/test/embedtest"
	"berth/test/testimage"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func busybox(t *testing.T) v1.Image {
	t.Helper()
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestBusyboxIsAlwaysTheSame(t *testing.T) {
	first, second := busybox(t), busybox(t)
	a, err := first.Digest()
	if err != nil {
		t.Fatal(err)
	}
	b, err := second.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Errorf("digests %s and %s", a, b)
	}
}

func TestLayerHoldsTheFilesAsGiven(t *testing.T) {
	layer, err := testimage.Layer(
		testimage.File{Name: "d", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		testimage.File{Name: "d/f", Mode: fs.ModeSetuid | 0o755, UID: 1 << 31, GID: 7, Body: []byte("x")},
		testimage.File{Name: "d/s", Mode: fs.ModeSymlink | 0o777, Target: "f"},
		testimage.File{Name: "../h", Mode: 0o644, Target: "d/f"},
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type entry struct {
		name   string
		kind   byte
		mode   int64
		uid    int
		target string
	}
	var got []entry
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{h.Name, h.Typeflag, h.Mode, h.Uid, h.Linkname})
	}
	want := []entry{
		{"d/", tar.TypeDir, 0o1777, 0, ""},
		{"d/f", tar.TypeReg, 0o4755, 1 << 31, ""},
		{"d/s", tar.TypeSymlink, 0o777, 0, "f"},
		{"../h", tar.TypeLink, 0o644, 0, "d/f"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestArchivesImportIntoContainerdUnderTheirName(t *testing.T) {
	s := embedtest.Start(t, embedtest.Config(t))
	ctx := namespaces.WithNamespace(t.Context(), embed.Namespace)
	for name, write := range map[string]func(path, ref string, img v1.Image) error{
		"oci":    func(path, ref string, img v1.Image) error { return testimage.WriteOCIArchive(path, ref, img) },
		"docker": testimage.WriteDockerArchive,
	} {
		t.Run(name, func(t *testing.T) {
			ref := "berth.test/" + name + "/busybox:1"
			path := filepath.Join(t.TempDir(), "image.tar")
			if err := write(path, ref, busybox(t)); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			images, err := s.Client().Import(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			if len(images) != 1 || images[0].Name != ref {
				t.Fatalf("imported %v, want %s", images, ref)
			}
			img, err := s.Client().GetImage(ctx, ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := img.Unpack(ctx, "native"); err != nil {
				t.Error(err)
			}
			left, err := os.ReadDir(filepath.Dir(path))
			if err != nil || len(left) != 1 {
				t.Errorf("left beside the archive: %v, %v", left, err)
			}
		})
	}
}

func TestSameImageMakesTheSameArchive(t *testing.T) {
	dir := t.TempDir()
	var archives [2][]byte
	for i := range archives {
		path := filepath.Join(dir, "image.tar")
		if err := testimage.WriteOCIArchive(path, "berth.test/busybox:1", busybox(t)); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of one image differ")
	}
}
