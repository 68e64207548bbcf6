// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		if err := f.MakeHostPath(t.Context(), path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "new/one")); err != nil || !st.IsDir() {
		t.Errorf("it was not made: %v", err)
	}
	if err := f.MakeHostPath(t.Context(), file+"/below"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("below a file: %v", err)
	}
}

// A file system that does not answer holds one thread, however often its path is asked for, and
// what is asked about others is answered.
func TestAHostPathThatDoesNotAnswerIsLookedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(t.TempDir(), t.TempDir())
		dead := make(chan struct{})
		var looks atomic.Int32
		f.paths = newHostPaths(func(path string) error {
			if path == "/alive" {
				return nil
			}
			looks.Add(1)
			<-dead
			return nil
		})
		ask := func(path string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return f.MakeHostPath(ctx, path)
		}
		for range 10 {
			if err := ask("/mnt/dead"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "/mnt/dead") {
				t.Error(err)
			}
		}
		if err := ask("/alive"); err != nil || looks.Load() != 1 {
			t.Errorf("looked %d times; another one: %v", looks.Load(), err)
		}
		for i := range maxHostPaths - 1 {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = f.MakeHostPath(ctx, fmt.Sprint("/mnt/", i))
		}
		if err := ask("/alive"); !errdefs.IsUnavailable(err) {
			t.Errorf("one more than there may be: %v", err)
		}
		close(dead)
		synctest.Wait()
		for _, path := range []string{"/mnt/dead", "/alive"} {
			if err := ask(path); err != nil {
				t.Error(err)
			}
		}
	})
}
