// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func layer(title string) ocispec.Descriptor {
	d := ocispec.Descriptor{Digest: digest.FromString("body of " + title), Size: int64(len("body of " + title))}
	if title != "" {
		d.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	}
	return d
}

func layers(titles ...string) (m ocispec.Manifest) {
	for _, t := range titles {
		m.Layers = append(m.Layers, layer(t))
	}
	return m
}

// PROPERTIES 25: no file of an artifact is outside its volume.
func TestNamesOfFiles(t *testing.T) {
	long := strings.Repeat("x", maxElement)
	for _, c := range []struct {
		titles []string
		want   string // names with commas, or what the error has after "!"
	}{
		{[]string{"a"}, "a"},
		{[]string{"a", "b/c", "b/d/e"}, "a,b/c,b/d/e"},
		{[]string{"./a", "b//c"}, "a,b/c"},
		{[]string{"", "a"}, "a"},
		{[]string{"..a", "a..b", "...", `a\b`, " ", "ü"}, `..a,a..b,...,a\b, ,ü`},
		{[]string{long}, long},
		{nil, "!no layer of the artifact has a name"},
		{[]string{""}, "!no layer of the artifact has a name"},
		{[]string{"/a"}, "!absolute"},
		{[]string{"//a"}, "!absolute"},
		{[]string{".."}, `!".."`},
		{[]string{"../a"}, `!".."`},
		{[]string{"a/../b"}, `!".."`},
		{[]string{"a/.."}, `!".."`},
		{[]string{"a/../../b"}, `!".."`},
		{[]string{"."}, "!directory"},
		{[]string{"./"}, "!directory"},
		{[]string{"a/"}, "!directory"},
		{[]string{"a\x00b"}, "!character"},
		{[]string{"a\nb"}, "!character"},
		{[]string{"a\xffb"}, "!character"},
		{[]string{long + "x"}, "!longer than 255"},
		{[]string{strings.Repeat("x/", maxName) + "y"}, "!longer than 2048"},
		{[]string{"a", "a"}, "!has as well"},
		{[]string{"a", "./a"}, "!has as well"},
		{[]string{"a/b", "a"}, "!directory of another layer"},
		{[]string{"a", "a/b/c"}, "!directory of another layer"},
		{[]string{"a/b", "a/b/c"}, "!directory of another layer"},
	} {
		files, err := Files(layers(c.titles...))
		var names []string
		for _, f := range files {
			names = append(names, f.Name)
		}
		why, refused := strings.CutPrefix(c.want, "!")
		switch {
		case refused && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), why)):
			t.Errorf("%.100q: %q, %v; want an error with %q", c.titles, names, err, why)
		case !refused && (err != nil || strings.Join(names, ",") != c.want):
			t.Errorf("%.100q: %q, %v", c.titles, names, err)
		}
	}
}

func TestALayerThatIsNoBlobIsRefused(t *testing.T) {
	for _, d := range []ocispec.Descriptor{
		{Digest: "sha256:../../x"},
		{Digest: ""},
		{Digest: digest.FromString("x"), Size: -1},
	} {
		d.Annotations = map[string]string{ocispec.AnnotationTitle: "a"}
		if _, err := Files(ocispec.Manifest{Layers: []ocispec.Descriptor{d}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

func TestTheNumberOfFilesAndDirectoriesIsBounded(t *testing.T) {
	var m ocispec.Manifest
	for n := range 100 {
		d := layer(strconv.Itoa(n) + strings.Repeat("/x", maxName/2-8))
		m.Layers = append(m.Layers, d)
	}
	if _, err := Files(m); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

func TestWhatAnArtifactIs(t *testing.T) {
	const image, docker = ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json"
	for _, c := range []struct {
		config, kind, title string
		want                bool
	}{
		{image, "", "a", false},
		{docker, "", "a", false},
		{"", "", "a", false},
		{image, "application/x", "a", true},
		{image, "application/x", "", false}, // an image that says what it is for can be run
		{docker, "application/x", "a", true},
		{ocispec.MediaTypeEmptyJSON, "application/x", "a", true},
		{ocispec.MediaTypeEmptyJSON, "", "a", true},
		{ocispec.MediaTypeEmptyJSON, "", "", true},
		{"application/vnd.cncf.model.config.v1+json", "", "a", true},
	} {
		m := layers(c.title)
		m.Config.MediaType, m.ArtifactType = c.config, c.kind
		if got := Is(m); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// onDisk has the blobs of files in a directory, as a content store has.
type onDisk struct {
	t    *testing.T
	dir  string
	mode fs.FileMode
}

func (d onDisk) Path(f File) string { return filepath.Join(d.dir, f.Blob.Digest.Encoded()) }

func (d onDisk) Open(_ context.Context, f File) (io.ReadCloser, error) { return os.Open(d.Path(f)) }

func (d onDisk) fill(files []File) {
	for _, f := range files {
		_ = os.Remove(d.Path(f))
		err := os.WriteFile(d.Path(f), []byte("body of "+f.Name), 0o600)
		if err == nil {
			err = os.Chmod(d.Path(f), d.mode)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func filesOf(t *testing.T, titles ...string) []File {
	t.Helper()
	files, err := Files(layers(titles...))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func none(*os.File, string) error { return unix.EOPNOTSUPP }

func TestFilesAreLaidOut(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	files := filesOf(t, "a", "b/c/d", "b/e")
	for name, c := range map[string]struct {
		mode   fs.FileMode
		ways   []how
		shared bool
	}{
		"linked":                              {0o444, []how{none, link}, true},
		"copied":                              {0o444, []how{none, none}, false},
		"copied, where others may not read":   {0o400, []how{none, link}, false},
		"copied, where the owner may write":   {0o644, []how{none, link}, false},
		"as this file system has it":          {0o444, []how{reflink, link}, true},
		"copied, where both are not possible": {0o444, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			from := onDisk{t, t.TempDir(), c.mode}
			from.fill(files)
			dir := t.TempDir()
			p, err := place(t.Context(), dir, files, from, c.ways...)
			if err != nil || p.Shared > 0 != c.shared || p.Copied > 0 == c.shared || p.Shared+p.Copied != Size(layers("a", "b/c/d", "b/e")) {
				t.Fatalf("%+v %v", p, err)
			}
			for _, f := range files {
				path := filepath.Join(dir, f.Name)
				b, err := os.ReadFile(path)
				if err != nil || string(b) != "body of "+f.Name {
					t.Errorf("%s: %q %v", f.Name, b, err)
				}
				if st, err := os.Lstat(path); err != nil || st.Mode() != fileMode {
					t.Errorf("%s: %v %v", f.Name, st.Mode(), err)
				}
				if st, err := os.Stat(filepath.Dir(path)); f.Name != "a" && (err != nil || st.Mode().Perm() != dirMode) {
					t.Errorf("the directory of %s: %v %v", f.Name, st.Mode(), err)
				}
			}
		})
	}
}

// What could not be asked is no reason to copy: a blob of many GiB would be there twice.
func TestAnErrorOfTheDiskIsNotTakenForAFileSystemWithoutLinks(t *testing.T) {
	files := filesOf(t, "a")
	from := onDisk{t, t.TempDir(), 0o444}
	from.fill(files)
	for _, broken := range []error{unix.EIO, unix.ENOSPC, unix.EDQUOT} {
		_, err := place(t.Context(), t.TempDir(), files, from, func(*os.File, string) error { return broken })
		if !errors.Is(err, broken) {
			t.Errorf("%v: %v", broken, err)
		}
	}
}

func TestABlobThatIsNotWholeIsNotLaidOut(t *testing.T) {
	files := filesOf(t, "a")
	from := onDisk{t, t.TempDir(), 0o444}
	for _, body := range []string{"", "body of", "body of a and more"} {
		if err := os.WriteFile(from.Path(files[0]), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, b := range []Blobs{from, streams{from}} {
			if _, err := Place(t.Context(), t.TempDir(), files, b); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%q: %v", body, err)
			}
		}
	}
}

// streams are blobs that have no files here.
type streams struct{ onDisk }

func (streams) Path(File) string { return "" }

func TestALayOutEndsWithItsContext(t *testing.T) {
	files := filesOf(t, "a")
	from := onDisk{t, t.TempDir(), 0o444}
	from.fill(files)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, b := range []Blobs{from, streams{from}} {
		if _, err := Place(ctx, t.TempDir(), files, b); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A link of the content store, or of whoever was there before, leads nowhere.
func TestNoLinkIsFollowed(t *testing.T) {
	files := filesOf(t, "a")
	from := onDisk{t, t.TempDir(), 0o444}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("body of a"), 0o444), os.Symlink(secret, from.Path(files[0]))); err != nil {
		t.Fatal(err)
	}
	if _, err := Place(t.Context(), t.TempDir(), files, from); err == nil {
		t.Error("a link was followed")
	}
	from = onDisk{t, t.TempDir(), 0o444}
	from.fill(files)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := place(t.Context(), dir, files, from); err == nil {
		t.Error("a link in the directory was followed")
	}
}

func FuzzNamesStayBelow(f *testing.F) {
	for _, s := range []string{"a", "../a", "/a", "a/../b", "./a//b", "a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, title string) {
		files, err := Files(layers(title))
		if err != nil {
			return
		}
		if n := files[0].Name; !filepath.IsLocal(n) || n != filepath.Clean(n) || n == "." || bytes.ContainsRune([]byte(n), 0) {
			t.Errorf("%q became %q", title, n)
		}
	})
}
