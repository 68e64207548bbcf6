// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Root and State kept whatever mode they had: once readable by others, they stayed so
// (CVE-2021-41103, CVE-2024-25621).
func TestADirectoryThatIsOpenToOthersIsClosed(t *testing.T) {
	for _, c := range []struct{ before, allowed, after fs.FileMode }{
		{0, rootMode, 0o700}, // it does not exist
		{0o755, rootMode, 0o700},
		{0o777, rootMode, 0o700},
		{0o700, rootMode, 0o700},
		{0o777, stateMode, 0o711},
		{0o755, stateMode, 0o711},
		{0o700, stateMode, 0o700}, // stricter than needed is a decision of its owner
	} {
		dir := filepath.Join(t.TempDir(), "above", "dir")
		if c.before != 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, c.before); err != nil {
				t.Fatal(err)
			}
		}
		if err := makeDir(dir, c.allowed); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != c.after {
			t.Errorf("a directory of mode %o has mode %o now, want %o", c.before, st.Mode().Perm(), c.after)
		}
	}
}

func TestWhatIsNotADirectoryIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(file, rootMode); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

func TestThePauseProgramIsReplacedWhenItChanged(t *testing.T) {
	libexec, dir := t.TempDir(), t.TempDir()
	for _, text := range []string{"one", "two", "two"} {
		if err := os.WriteFile(filepath.Join(libexec, "pause"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := installPause(libexec, dir)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(root, "pause")); err != nil || string(b) != text {
			t.Errorf("installed %q, want %q: %v", b, text, err)
		}
	}
	if _, err := installPause(t.TempDir(), dir); err == nil || !strings.Contains(err.Error(), "pause") {
		t.Errorf("without the program: %v", err)
	}
}
