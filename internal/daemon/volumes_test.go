// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"testing"
)

type layerOf struct{ bytes, inodes uint64 }

func (l layerOf) SnapshotUsage(context.Context, string, string) (bytes, inodes uint64, err error) {
	return l.bytes, l.inodes, nil
}

// What a container has written into a volume of its image counts, and is not zero if it cannot be
// measured.
func TestWhatIsInTheVolumesOfAnImageCounts(t *testing.T) {
	w := withVolumes{layerOf{24 << 10, 6}, func(_ context.Context, id string) (bytes, inodes uint64, err error) {
		if id != "c" {
			return 0, 0, errors.New("the disk does not answer")
		}
		return 60 << 20, 2, nil
	}}
	if bytes, inodes, err := w.SnapshotUsage(t.Context(), "overlayfs", "c"); bytes != 60<<20+24<<10 || inodes != 8 || err != nil {
		t.Errorf("%d bytes in %d files, %v", bytes, inodes, err)
	}
	if _, _, err := w.SnapshotUsage(t.Context(), "overlayfs", "d"); err == nil {
		t.Error("what cannot be measured counts as nothing")
	}
}
