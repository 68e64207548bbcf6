// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// archives is an image store to which archives can be imported, each of which has one image of its
// own, and a directory of archives.
type archives struct {
	*fake
	t    *testing.T
	dir  string
	err  map[string]error         // of archives, by file name
	hold map[string]chan struct{} // imports of archives, by file name

	lock     sync.Mutex
	imported []string // file names
}

func newArchives(t *testing.T) *archives {
	f := newFake()
	close(f.release)
	return &archives{fake: f, t: t, dir: t.TempDir(), err: map[string]error{}, hold: map[string]chan struct{}{}}
}

func (a *archives) Import(ctx context.Context, path, _ string, read func(done, total int64)) ([]Stored, []string, error) {
	file := filepath.Base(path)
	a.lock.Lock()
	a.imported = append(a.imported, file)
	hold, err := a.hold[file], a.err[file]
	a.lock.Unlock()
	read(1, 2)
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, nil, err
	}
	name, _, _ := strings.Cut(file, ".")
	st := stored("registry.example/"+name+":1", "sha256:"+name)
	a.put(st)
	return []Stored{st}, nil, nil
}

// did returns the archives that were imported since the last question.
func (a *archives) did() (files []string) {
	a.lock.Lock()
	defer a.lock.Unlock()
	files, a.imported = a.imported, nil
	return files
}

// write writes an archive of an image, which is as old as the text says.
func (a *archives) write(file string, age time.Duration) {
	a.t.Helper()
	name, _, _ := strings.Cut(file, ".")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct{ name, text string }{
		{"blobs/sha256/layer", strings.Repeat("x", 5000)},
		{"manifest.json", fmt.Sprintf(`[{"RepoTags":["registry.example/%s:1","Not A Name"]}]`, name)},
	} {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: int64(len(f.text))}), func() error { _, err := w.Write([]byte(f.text)); return err }()); err != nil {
			a.t.Fatal(err)
		}
	}
	path := filepath.Join(a.dir, file)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age)
	if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o600), os.Chtimes(path, at, at)); err != nil {
		a.t.Fatal(err)
	}
}

// begin starts a service, until stop is called. It finds the directory and its memory as they are.
func (a *archives) begin() (s *Service, p *Preload, stop func()) {
	a.t.Helper()
	s = New(a, Config{Logger: slog.New(slog.DiscardHandler)})
	if err := s.Refresh(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	p = NewPreload(s, PreloadConfig{Dir: a.dir, Memory: filepath.Join(a.dir, ".memory"), Ready: func(ctx context.Context) error { return ctx.Err() }})
	ctx, cancel := context.WithCancel(a.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { _ = p.Run(ctx) })
	synctest.Wait()
	return s, p, func() { cancel(); wg.Wait() }
}

func (a *archives) expect(when string, want ...string) {
	a.t.Helper()
	if got := a.did(); !slices.Equal(got, want) {
		a.t.Errorf("%s: %q were imported, want %q", when, got, want)
	}
}

func TestArchivesAreImportedAndPinnedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchives(t)
		a.write("b.tar", 0)
		a.write("a.tar.gz", 0)
		a.write(".c.tar", 0) // is being copied there
		if err := os.WriteFile(filepath.Join(a.dir, "README"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, p, stop := a.begin()
		a.expect("the first start", "a.tar.gz", "b.tar")
		if got := pinnedNames(t, s); !slices.Equal(got, []string{"registry.example/a:1", "registry.example/b:1"}) {
			t.Errorf("pinned are %q", got)
		}
		if i, err := s.Resolve("registry.example/a:1"); err != nil || !slices.Equal(i.Pins, []Pin{PinArchive}) {
			t.Errorf("%v %v", i.Pins, err)
		}
		if got := p.Problems(); len(got) != 0 {
			t.Errorf("%q", got)
		}
		stop()

		s, p, stop = a.begin()
		a.expect("the second start")
		if got := pinnedNames(t, s); len(got) != 2 {
			t.Errorf("after the second start %q are pinned", got)
		}
		a.write("b.tar", time.Minute)
		p.Look(a.dir)
		synctest.Wait()
		a.expect("a file that has changed", "b.tar")
		if err := s.Remove(t.Context(), "registry.example/a:1"); err != nil {
			t.Fatal(err)
		}
		p.Look(a.dir)
		synctest.Wait()
		a.expect("an image that was removed", "a.tar.gz")
		if err := os.Remove(filepath.Join(a.dir, "b.tar")); err != nil {
			t.Fatal(err)
		}
		p.Look(a.dir)
		synctest.Wait()
		a.expect("a file that is gone")
		if got := pinnedNames(t, s); !slices.Equal(got, []string{"registry.example/a:1"}) {
			t.Errorf("after a file was removed %q are pinned", got)
		}
		p.Look("")
		synctest.Wait()
		if got := pinnedNames(t, s); len(got) != 0 {
			t.Errorf("without a directory %q are pinned", got)
		}
		stop()
	})
}

func TestABadArchiveHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchives(t)
		a.write("a.tar", 0)
		a.write("b.tar", 0)
		a.err["a.tar"] = errors.New("it is torn")
		if err := os.WriteFile(filepath.Join(a.dir, "open.tar"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(a.dir, "open.tar"), 0o666); err != nil { // whatever the umask
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(a.dir, "dir.tar"), 0o700); err != nil {
			t.Fatal(err)
		}
		s, p, stop := a.begin()
		defer stop()
		a.expect("the start", "a.tar", "b.tar")
		got := p.Problems()
		if len(got) != 3 || !strings.Contains(strings.Join(got, "\n"), "a.tar: it is torn") ||
			!strings.Contains(strings.Join(got, "\n"), "open.tar has the mode 666") || !strings.Contains(strings.Join(got, "\n"), "dir.tar is not a regular file") {
			t.Errorf("%q", got)
		}
		if _, err := s.Resolve("registry.example/b:1"); err != nil {
			t.Error(err)
		}
		a.lock.Lock()
		delete(a.err, "a.tar")
		a.lock.Unlock()
		p.Look(a.dir)
		synctest.Wait()
		a.expect("the next look", "a.tar")
		if got := p.Problems(); len(got) != 2 {
			t.Errorf("%q", got)
		}
	})
}

// A containerd that is away says nothing about the archive, and a directory that cannot be read
// nothing about what is in it.
func TestWhatCannotBeAskedIsNotAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchives(t)
		a.write("a.tar", 0)
		a.err["a.tar"] = fmt.Errorf("containerd: %w", errdefs.ErrUnavailable)
		s, p, stop := a.begin()
		defer stop()
		time.Sleep(20 * time.Second)
		a.lock.Lock()
		if len(a.imported) < 3 {
			t.Errorf("%d attempts", len(a.imported))
		}
		a.imported = nil
		delete(a.err, "a.tar")
		a.lock.Unlock()
		time.Sleep(slowestPreload)
		synctest.Wait()
		a.expect("containerd is back", "a.tar")
		if got := p.Problems(); len(got) != 0 {
			t.Errorf("%q", got)
		}
		gone := a.dir + ".away"
		if err := os.Rename(a.dir, gone); err != nil {
			t.Fatal(err)
		}
		p.Look(a.dir)
		synctest.Wait()
		if got := pinnedNames(t, s); len(got) != 1 || len(p.Problems()) != 1 {
			t.Errorf("without the directory %q are pinned; problems: %q", got, p.Problems())
		}
		if err := os.Rename(gone, a.dir); err != nil {
			t.Fatal(err)
		}
	})
}

func TestABrokenMemoryIsWrittenAnew(t *testing.T) {
	for _, text := range []string{"{", "null", ""} {
		synctest.Test(t, func(t *testing.T) {
			a := newArchives(t)
			a.write("a.tar", 0)
			if err := os.WriteFile(filepath.Join(a.dir, ".memory"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, stop := a.begin()
			stop()
			a.expect("the first start", "a.tar")
			_, _, stop = a.begin()
			stop()
			a.expect("the second start")
		})
	}
}

// A pull of an image that an archive has waits for the archive, which is imported next, and then
// fetches what is missing. No other pull waits.
func TestAPullWaitsForItsArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchives(t)
		for _, file := range []string{"a.tar", "b.tar", "c.tar"} {
			a.write(file, 0)
		}
		a.hold["a.tar"], a.hold["c.tar"] = make(chan struct{}), make(chan struct{})
		s, _, stop := a.begin()
		defer stop()
		done := make(chan error, 1)
		go func() {
			_, err := s.Pull(t.Context(), "registry.example/c:1", nil, Caller{Name: "team/web"})
			done <- err
		}()
		synctest.Wait()
		if _, err := s.Pull(t.Context(), "registry.example/other:1", nil, Caller{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Resolve("registry.example/c:1"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "c.tar") {
			t.Errorf("%v", err)
		}
		list := s.Transfers(t.Context())
		if len(list) != 2 || list[0].Kind != KindPreload || list[0].Image != filepath.Join(a.dir, "a.tar") || list[0].Fetched != 1 || list[0].Total != 2 ||
			list[1].State != StateWaiting || list[1].Archive != filepath.Join(a.dir, "c.tar") || !slices.Equal(list[1].Waiters, []string{"team/web"}) {
			t.Errorf("%+v", list)
		}
		close(a.hold["a.tar"])
		synctest.Wait()
		a.expect("a pull waits for c", "a.tar", "c.tar")
		pulls := a.pulls
		close(a.hold["c.tar"])
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		a.expect("afterwards", "b.tar")
		if a.pulls != pulls+1 {
			t.Errorf("the registry was asked %d times", a.pulls-pulls)
		}
	})
}

// A pull of an image whose archive is bad goes on.
func TestAPullOutlivesABadArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchives(t)
		a.write("a.tar", 0)
		a.hold["a.tar"], a.err["a.tar"] = make(chan struct{}), errors.New("it is torn")
		s, _, stop := a.begin()
		defer stop()
		done := make(chan error, 1)
		go func() {
			_, err := s.Pull(t.Context(), "registry.example/a:1", nil, Caller{})
			done <- err
		}()
		synctest.Wait()
		close(a.hold["a.tar"])
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// An archive in the OCI layout has its names in its index.
func TestTheNamesInAnArchiveAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "oci.tar")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	text := `{"manifests":[{"annotations":{"io.containerd.image.name":"registry.example/a:1"}},
		{"annotations":{"org.opencontainers.image.ref.name":"bbx:latest"}},
		{"annotations":{"org.opencontainers.image.ref.name":"latest"}},{}]}`
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "./index.json", Mode: 0o600, Size: int64(len(text))}), func() error { _, err := w.Write([]byte(text)); return err }(), w.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := peek(path); !slices.Equal(got, []string{"registry.example/a:1", "docker.io/library/bbx:latest"}) {
		t.Errorf("%q", got)
	}
	if got := peek(filepath.Join(t.TempDir(), "absent")); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
