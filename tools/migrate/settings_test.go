// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// Whatever is in a file, reading it ends with a plan or an error.
func FuzzSettings(f *testing.F) {
	err := filepath.WalkDir("testdata/nodes", func(name string, d fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(name, ".toml") || strings.HasSuffix(name, ".conf")) {
			var b []byte
			if b, err = os.ReadFile(name); err == nil {
				f.Add(b)
			}
		}
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	nothing := facts{
		which: func(string) string { return "" },
		read:  func(string) ([]byte, error) { return nil, fs.ErrNotExist },
		full:  func(string) bool { return true },
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if cfg, version, err := containerdTree("/f", text); err == nil {
			if tr, err := fromContainerd(cfg, version, nothing); err == nil {
				var m map[string]any
				if b := draft(tr.settings, "x", false); toml.Unmarshal(b, &m) != nil {
					t.Errorf("not TOML: %s", b)
				}
			}
		}
		if cfg, err := parseTOML("/f", text); err == nil {
			_, _ = fromCRIO(cfg, cfg, nothing) // it ends
		}
	})
}
