// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestALinkTakesNobodysPlace(t *testing.T) {
	dir := t.TempDir()
	s := &Server{cfg: Config{State: dir}}
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "new", "link")
	for _, path := range []string{file, s.cfg.address()} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leads := func(to string) {
		t.Helper()
		if got, err := os.Readlink(link); err != nil || got != to {
			t.Errorf("it leads to %q, %v, want %q", got, err, to)
		}
	}
	relink := func(to string) {
		t.Helper()
		if err := errors.Join(os.Remove(link), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := s.Link(link); err != nil {
			t.Fatal(err)
		}
		leads(s.cfg.address())
	}
	relink(filepath.Join(dir, "nowhere"))
	if err := s.Link(link); err != nil {
		t.Fatal(err)
	}
	leads(s.cfg.address())
	relink(file)
	if err := s.Link(link); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another's link: %v", err)
	}
	if err := s.Unlink(link); err != nil {
		t.Error(err)
	}
	leads(file)
	if err := s.Link(file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file: %v", err)
	}
	relink(s.cfg.address())
	for range 2 {
		if err := s.Unlink(link); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(link); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
