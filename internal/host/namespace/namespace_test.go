// SPDX-License-Identifier: Apache-2.0

package namespace_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

// The main thread cannot end, so what it was left in would be that of the process.
func TestNothingRunsInTheMainThread(t *testing.T) {
	own := errors.New("the error of what was run")
	for range 20 {
		err := namespace.InThread(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("it runs in the main thread")
			}
			return own
		})
		if !errors.Is(err, own) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestAFileIsNotAPin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/proc/self/ns/net": true, file: false, file + "-absent": false} {
		if got, err := namespace.IsPinned(path); err != nil || got != want {
			t.Errorf("%s: %t, %v", path, got, err)
		}
	}
	if _, err := namespace.IsPinned(filepath.Join(file, "below")); err == nil {
		t.Error("nobody can look below a file, which is not the same as that nothing is there")
	}
}
