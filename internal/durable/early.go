// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// earlyBytes is how much of an image is written, at most, between two times that the disk is given what
// there is. It is a fraction of a second's work for a disk.
const earlyBytes = 8 << 20

// Early says when the disk is to be given what was written of an image.
//
// Left to itself, the kernel keeps gigabytes of that in memory, and gives them to the disk at once: when it has
// kept a tenth of the memory, when half a minute has passed, or when a blob is synced. Whatever else is to be
// written down then waits behind them: an end, which is told when it is on the disk. Given early, the same
// bytes pass by in small parts.
//
// It relies on how Linux writes back what files have. tricks.write_early turns it off; what it buys is in
// docs/tricks.md. Delete it when the kernel keeps what a process has written from holding up what another one
// syncs, on a disk like any other (https://git.kernel.org/torvalds/c/87760e5eef35 began with that).
//
// The zero value is ready for use, by any number of goroutines.
type Early struct{ written atomic.Int64 }

// Wrote counts n bytes that were written, and reports whether [Begin] is to be called now for the files that
// were written since it last was.
func (e *Early) Wrote(n int) bool {
	if e.written.Add(int64(n)) < earlyBytes {
		return false
	}
	e.written.Store(0)
	return true
}

// Begin has the kernel begin to put onto the disk what it holds of a file, and waits only while the disk has its
// queue full. It is a wish, and says nothing about what is on the disk: an error shows when the file is synced.
func Begin(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}
