// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Find finds what path names below the directory dir, and returns a descriptor of it that reads and
// writes nothing (O_PATH in open(2)). flags are those of openat2(2) that are to hold besides. The error is
// that of the kernel. The caller closes the descriptor.
func Find(dir int, path string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		found, err := unix.Openat2(dir, path, &how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // something was renamed or mounted, anywhere
			continue
		}
		return found, err
	}
}

// OpenFile opens the regular file that path names below the directory dir for reading. Whatever is not
// a regular file is as good as absent: the error is fs.ErrNotExist. The caller closes the file.
func OpenFile(dir int, path string) (*os.File, error) {
	found, err := Find(dir, path, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", path, err)
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return nil, fmt.Errorf("look at %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%q is not a regular file: %w", path, fs.ErrNotExist)
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(found))
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	return f, nil
}
