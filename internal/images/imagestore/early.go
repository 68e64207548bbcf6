// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/images/durable"
)

// earlyBlobs has the kernel write back blobs while they are fetched. containerd syncs a blob when
// it has all of it. It relies on where containerd's content store writes a blob: without a file
// there nothing is written back early, and nothing else changes.
type earlyBlobs struct {
	dir  string // of the blobs that containerd does not have all of
	pace durable.Early
}

// newEarlyBlobs returns nil, which does nothing, for a containerd of another process.
func newEarlyBlobs(root string, late bool) *earlyBlobs {
	if root == "" || late {
		return nil
	}
	return &earlyBlobs{dir: ingestsIn(root)}
}

// wrote counts the bytes that were written of any blob. Now and then it begins the writeback of all
// of them.
func (e *earlyBlobs) wrote(n int) {
	if e == nil || !e.pace.Wrote(n) {
		return
	}
	blobs, err := os.ReadDir(e.dir)
	if err != nil {
		return
	}
	for _, b := range blobs {
		f, err := os.OpenFile(filepath.Join(e.dir, b.Name(), "data"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		durable.Begin(f)
		f.Close()
	}
}
