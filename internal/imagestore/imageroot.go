// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ReadFiles reads files of an image. Links are followed within the image only.
func (i *Store) ReadFiles(ctx context.Context, chainID string, limit int64, paths ...string) ([][]byte, error) {
	out := make([][]byte, len(paths))
	err := i.view(ctx, chainID, func(root string) error {
		dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open image root: %w", err)
		}
		defer unix.Close(dir)
		for n, p := range paths {
			if out[n], err = readIn(dir, p, limit); err != nil {
				return fmt.Errorf("read /%s of image: %w", p, err)
			}
		}
		return nil
	})
	return out, err
}

// readIn reads a regular file below dir; anything else is as good as absent. The file is found
// first and opened once its type is known: opening a device acts on it, and opening a FIFO waits.
func readIn(dir int, path string, limit int64) ([]byte, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	found, err := unix.Openat2(dir, path, &how)
	for errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // something was renamed or mounted, anywhere
		found, err = unix.Openat2(dir, path, &how)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	tooLarge := fmt.Errorf("it is larger than %d bytes: %w", limit, errdefs.ErrInvalidArgument)
	if st.Size > limit {
		return nil, tooLarge
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(found))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, tooLarge
	}
	return b, nil
}
