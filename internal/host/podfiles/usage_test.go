// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"os"
	"path/filepath"
	"testing"
)

// Sixty mebibytes in a volume of an image counted as 24 KiB: only the writable layer was measured.
func TestTheVolumesOfAnImageAreMeasured(t *testing.T) {
	f := &Files{root: t.TempDir()}
	const size = 1 << 20
	for n := range 2 {
		dir, err := f.MakeVolume("c", n)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "data")
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(file, filepath.Join(dir, "again")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
			t.Fatal(err)
		}
	}
	bytes, inodes, err := f.VolumeUsage(t.Context(), "c")
	if err != nil || bytes < 2*size || bytes > 3*size || inodes != 6 {
		t.Errorf("%d bytes in %d files, %v", bytes, inodes, err)
	}
	if bytes, inodes, err := f.VolumeUsage(t.Context(), "none"); bytes != 0 || inodes != 0 || err != nil {
		t.Errorf("without volumes: %d bytes in %d files, %v", bytes, inodes, err)
	}
}
