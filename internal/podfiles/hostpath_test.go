// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// A mount of what cannot be a directory was reported as an error of berth's own.
func TestAHostPathThatCannotBeMadeIsAFailedPrecondition(t *testing.T) {
	dir := t.TempDir()
	f := New(dir, dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(dir, "new/one"), "relative"} {
		if err := f.MakeHostPath(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "new/one")); err != nil || !st.IsDir() {
		t.Errorf("it was not made: %v", err)
	}
	if err := f.MakeHostPath(file + "/below"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("below a file: %v", err)
	}
}
