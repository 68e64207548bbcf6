// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
)

// PROPERTIES 39: a file that is not what its blob is, is found, whether it is a link to the blob or not.
func TestAFileThatIsNotItsBlobIsFound(t *testing.T) {
	files := filesOf(t, "a", "b/c")
	for n, f := range files {
		files[n].Blob.Digest = digest.FromString("body of " + f.Name)
	}
	replace := func(body string, mode fs.FileMode) func(string) error {
		return func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte(body), 0o600), os.Chmod(path, mode))
		}
	}
	for name, c := range map[string]struct {
		ways []how
		do   func(path string) error
		want error
	}{
		"linked":                {[]how{link}, func(string) error { return nil }, nil},
		"copied":                {nil, func(string) error { return nil }, nil},
		"written again":         {[]how{link}, replace("body of b/c", fileMode), nil},
		"with other bytes":      {nil, replace("bodY of b/c", fileMode), ErrWrong},
		"no link, other bytes":  {[]how{link}, replace("bodY of b/c", fileMode), ErrWrong},
		"empty":                 {nil, replace("", fileMode), ErrWrong},
		"longer":                {nil, replace("body of b/c and more", fileMode), ErrWrong},
		"with another mode":     {nil, replace("body of b/c", 0o600), ErrWrong},
		"missing":               {nil, os.Remove, ErrWrong},
		"without its directory": {nil, func(path string) error { return os.RemoveAll(filepath.Dir(path)) }, ErrWrong},
		"a directory":           {nil, func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, ErrWrong},
	} {
		t.Run(name, func(t *testing.T) {
			from := onDisk{t, t.TempDir(), fileMode}
			from.fill(files)
			dir := t.TempDir()
			if _, err := place(t.Context(), dir, files, from, c.ways...); err != nil {
				t.Fatal(err)
			}
			if err := c.do(filepath.Join(dir, "b/c")); err != nil {
				t.Fatal(err)
			}
			if err := Check(t.Context(), dir, files, from); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if err := Check(t.Context(), t.TempDir()+"/lost", files, onDisk{}); !errors.Is(err, ErrWrong) {
		t.Errorf("a lost directory: %v", err)
	}
}
