// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/task"

	"berth/internal/engine/shims"
)

var (
	thisID  = strings.Repeat("0123456789abcdef", 4)
	otherID = strings.Repeat("fedcba9876543210", 4)
)

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Containerd could not remove a bundle, since the rest of an earlier one was in its way, and said
// that the task was deleted (kill -9 at each step of a start, beside a containerd of its own). Both
// stayed for good.
func TestABundleIsRemovedThatContainerdCouldNotRemove(t *testing.T) {
	id := strings.Repeat("0b", 32)
	state := t.TempDir()
	bundles := filepath.Join(state, shims.TaskDir)
	for _, d := range []string{id, "." + id, "other"} {
		try(t, os.MkdirAll(filepath.Join(bundles, d, "below"), 0o700))
	}
	f := &fake{}
	f.add(id, "pod", false)
	f.tasks[id].Status = task.Status_STOPPED
	delete(f.containers, id)
	a := f.adapter(t)
	defer a.stop()
	a.shims = shims.New(shims.Config{StateDir: state, Logger: a.log})
	if err := a.DeleteTask(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(bundles)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left: %v %v", left, err)
	}
}
