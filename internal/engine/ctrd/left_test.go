// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/task"

	"berth/internal/engine/shims"
)

// IDs that no other process uses: the tests of two rooms run at the same time, and the search for
// what a task has left ends every shim on the machine that has its ID.
var thisID, otherID = newID(), newID()

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

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
