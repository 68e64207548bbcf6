// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// PROPERTIES 46: what another runtime has mounted is unmounted before its directory is removed, also
// through a link, and what was mounted stays.
func TestWhatAnotherRuntimeHasMadeIsRemoved(t *testing.T) {
	base := t.TempDir()
	dir, outside, link := filepath.Join(base, "real", "p1"), filepath.Join(base, "outside"), filepath.Join(base, "link")
	for _, d := range []string{dir + "/shm", dir + "/deep/er", outside} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kept, file := outside+"/kept", filepath.Join(base, "result")
	for _, f := range []string{kept, file} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(base, "real"), link); err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct{ from, to, kind string }{{"tmpfs", dir + "/shm", "tmpfs"}, {"tmpfs", dir + "/deep", "tmpfs"}} {
		if err := unix.Mount(m.from, m.to, m.kind, 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/deep/er", 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // one upon the other
		if err := unix.Mount(outside, dir+"/deep/er", "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	f := New(t.TempDir(), t.TempDir())
	for _, wrong := range []string{"/", base, "p1", dir + "/../p2", dir + "/"} {
		if err := f.RemoveAdopted("p1", []string{wrong}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	for range 2 {
		if err := f.RemoveAdopted("p1", []string{filepath.Join(link, "p1"), filepath.Join(base, "never", "p1")}, []string{file, file + "x"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{dir, file} {
		if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was mounted is gone: %v", err)
	}
}
