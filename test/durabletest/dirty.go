// SPDX-License-Identifier: Apache-2.0

// Package durabletest asks the kernel for the data of files that is not on its way to the disk yet.
package durabletest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CanTell reports whether the kernel reports the unwritten data of a file in dir, as Linux 6.5 and
// later do for file systems on a disk. It is false in a file system in memory, and in an overlay,
// whose files belong to another file system.
func CanTell(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "dirty"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var fs unix.Statfs_t
	if _, err := f.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		t.Fatal(err)
	}
	n, err := dirty(f)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	return err == nil && n > 0 && fs.Type != unix.TMPFS_MAGIC
}

// dirty returns how many bytes of a file the kernel has not begun to put onto the disk.
func dirty(f *os.File) (int64, error) {
	var has unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &has, 0); err != nil {
		return 0, fmt.Errorf("ask what the kernel holds of %s: %w", f.Name(), err)
	}
	return int64(has.Dirty) * int64(os.Getpagesize()), nil
}

// AwaitClean waits until a file has at least size bytes, of which the kernel has begun to put all
// but most onto the disk. It returns an error if that does not come. It may be called from any
// goroutine.
func AwaitClean(path string, size, most int64) error {
	var last error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		last = clean(path, size, most)
		if last == nil {
			return nil
		}
	}
	return last
}

func clean(path string, size, most int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() < size {
		return fmt.Errorf("%s has %d bytes, want %d", path, st.Size(), size)
	}
	n, err := dirty(f)
	if err == nil && n > most {
		err = fmt.Errorf("%s: %d bytes are not on their way to the disk, want %d at most", path, n, most)
	}
	return err
}
