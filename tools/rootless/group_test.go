// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"os"
	"path/filepath"
	"testing"
)

// Groups of pods are below that of the handler, and go before it. Files of the kernel go with them.
func TestGroupsAreRemovedFromBelow(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"k8s.io/c1", "k8s.io/c2/below", "berth-cni-p1.123", own} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		but  string
		left int
	}{{own, 2}, {"", 1}} {
		if err := removeBelow(dir, step.but); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != step.left {
			t.Errorf("left but for %q: %v, %v", step.but, left, err)
		}
	}
}
