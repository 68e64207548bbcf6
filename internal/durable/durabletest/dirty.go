// SPDX-License-Identifier: Apache-2.0

// Package durabletest asks the kernel what it holds of files that is not on its way to the disk yet.
package durabletest

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Dirty returns how many bytes of a file the kernel has not begun to put onto the disk. The test is skipped where
// the kernel cannot say (before Linux 6.5), and where the file is in memory anyway.
func Dirty(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skipf("%s is in memory", path)
	}
	var has unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &has, 0) //nolint:gosec // a descriptor
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel does not say what it holds of a file: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return int64(has.Dirty) * int64(os.Getpagesize()) //nolint:gosec // it is far smaller
}

// AwaitClean waits until a file has at least size bytes, of which the kernel has begun to put all but most onto the
// disk, and fails the test if that does not come. It is no use for files that are written with O_DIRECT.
func AwaitClean(t *testing.T, path string, size, most int64) {
	t.Helper()
	var dirty int64
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		st, err := os.Stat(path)
		if err != nil || st.Size() < size {
			continue
		}
		if dirty = Dirty(t, path); dirty <= most {
			return
		}
	}
	t.Errorf("%s: %d bytes are not on their way to the disk, want %d at most", path, dirty, most)
}
