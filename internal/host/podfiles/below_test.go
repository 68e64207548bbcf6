// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// The kernel does not resolve ".." while anything is renamed or mounted anywhere, and asks to be
// asked again.
func TestAPathIsFoundWhileOthersRename(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x/deep", "y"} {
		if err := os.MkdirAll(filepath.Join(elsewhere, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		one, other := filepath.Join(elsewhere, "x/deep"), filepath.Join(elsewhere, "y/deep")
		for {
			select {
			case <-done:
				return
			default:
				if err := os.Rename(one, other); err != nil {
					t.Error(err)
					return
				}
				one, other = other, one
			}
		}
	})
	for range 20000 {
		if _, err := (&Files{}).Below(dir, "a/b/../../a/b/../b"); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	others.Wait()
}
