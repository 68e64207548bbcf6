// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"

	"berth/internal/base/connection"
	"berth/test/durabletest"
)

// PROPERTIES 48: the part of a blob that was fetched is on its way to the disk while the rest is
// fetched. containerd still keeps that part in the file that berth looks for.
func TestWhatIsFetchedGoesToTheDiskMeanwhile(t *testing.T) {
	n := kept(t)
	ctx := connection.Namespaced(t.Context())
	w, err := n.content().Writer(ctx, content.WithRef("blob"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const size = 24 << 20
	for range size >> 20 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(n.cfg.Root, "io.containerd.content.v1.content/ingest/*/data"))
	if err != nil || len(files) != 1 {
		t.Fatalf("containerd has the blob in %q, %v", files, err)
	}
	if !durabletest.CanTell(t, t.TempDir()) {
		return
	}
	if err := durabletest.AwaitClean(files[0], size, 8<<20); err != nil {
		t.Error(err)
	}
}
