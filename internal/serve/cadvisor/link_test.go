// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// PROPERTIES 53: the link was removed while berth was there, and the kubelet's cAdvisor, which
// looks for it when the kubelet starts, found no container from then on.
func TestALinkThatIsRemovedIsMadeAgain(t *testing.T) {
	h := newHost(t)
	b := h.start()
	defer b.kill()
	leads := func() bool { to, err := os.Readlink(h.path("link")); return err == nil && to == b.socket() }
	h.until("the link is there", leads)
	for _, harm := range []func() error{
		func() error { return os.Remove(h.path("link")) },
		func() error { return os.Rename(h.path("link"), h.path("link.away")) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		h.until("the link is there again", leads)
	}
}

func TestALinkReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	file, path, target := filepath.Join(dir, "file"), filepath.Join(dir, "new", "link"), filepath.Join(dir, "run", "socket")
	if err := os.Mkdir(filepath.Dir(target), 0o700); err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(dir, "run", "containerd.sock")
	for _, path := range []string{file, target, former} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leads := func(to string) {
		t.Helper()
		if got, err := os.Readlink(path); err != nil || got != to {
			t.Errorf("it leads to %q, %v, want %q", got, err, to)
		}
	}
	relink := func(to string) {
		t.Helper()
		if err := errors.Join(os.Remove(path), os.Symlink(to, path)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := link(path, target); err != nil {
			t.Fatal(err)
		}
		leads(target)
	}
	for _, to := range []string{filepath.Join(dir, "nowhere"), former} {
		relink(to)
		if err := link(path, target); err != nil {
			t.Fatal(err)
		}
		leads(target)
	}
	relink(file)
	if err := link(path, target); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another's link: %v", err)
	}
	if err := unlink(path, target); err != nil {
		t.Error(err)
	}
	leads(file)
	if err := link(file, target); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file: %v", err)
	}
	relink(target)
	for range 2 {
		if err := unlink(path, target); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
