// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// earlyBytes is about how much of an image is written before its writeback begins: a fraction of a
// second's work for a disk.
const earlyBytes = 8 << 20

// Early decides when the writeback of an image's dirty pages begins.
//
// Left to itself, the kernel keeps gigabytes of dirty pages in memory, and writes them back at
// once: when they are a tenth of the memory, when half a minute has passed, or when a blob is
// synced. Every other write then waits behind them, such as the record of an end, which is
// published once it is on the disk. Written back early, the same bytes pass by in small parts.
//
// It relies on how Linux writes back dirty pages. tricks.write_early turns it off; docs/tricks.md
// has its figures. Delete it when the kernel keeps the writeback of one process from holding up the
// syncs of another one, on any disk (https://git.kernel.org/torvalds/c/87760e5eef35 began with
// that).
//
// The zero value is ready for use, by any number of goroutines.
type Early struct{ written atomic.Int64 }

// Wrote counts n bytes that were written, and reports whether the caller is to call [Begin] now for
// the files that were written since somebody last was.
func (e *Early) Wrote(n int) bool {
	sum := e.written.Add(int64(n))
	return sum >= earlyBytes && e.written.CompareAndSwap(sum, 0)
}

// Begin has the kernel begin to write back the dirty pages of a file. It does not wait for the
// disk, but may wait for room in its queue. It is a wish, and does not tell whether the pages are
// on the disk: an error shows when the file is synced.
func Begin(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}
