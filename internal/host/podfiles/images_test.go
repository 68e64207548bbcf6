// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// CVE-2022-23648: no path and no link of an image leads out of it.
func TestAPathBelowADirectoryStaysThere(t *testing.T) {
	f := New(t.TempDir(), t.TempDir())
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/etc/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"up":       "../../../../../../../../etc",
		"absolute": "/etc/sub",
		"root":     "/",
		"loop":     "loop",
		"host":     "/proc/self/root",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":             dir,
		"etc":          dir + "/etc",
		"etc/../etc/.": dir + "/etc",
		"up":           dir + "/etc",
		"absolute":     dir + "/etc/sub",
		"root":         dir,
		"../../etc":    dir + "/etc",
	} {
		if got, err := f.Below(dir, path); err != nil || got != want {
			t.Errorf("%q: %s %v, want %s", path, got, err, want)
		}
	}
	for _, path := range []string{"absent", "file", "file/x", "loop", "host"} {
		if got, err := f.Below(dir, path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %s %v", path, got, err)
		}
	}
}

func TestImageVolumesAreUnmountedAndRemoved(t *testing.T) {
	f := New(t.TempDir(), t.TempDir())
	image := t.TempDir()
	if err := os.WriteFile(image+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		for range 2 { // an attempt that was cut off is made again
			dir, err := f.MakeImageVolume("c1", n)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(image, dir, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ids, err := f.IDs(); err != nil || !slices.Equal(ids, []string{"c1"}) {
		t.Errorf("%q %v", ids, err)
	}
	for range 2 {
		if err := f.Remove("c1"); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := f.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("left: %q %v", ids, err)
	}
	if _, err := os.Stat(image + "/file"); err != nil {
		t.Errorf("the image was changed: %v", err)
	}
}
