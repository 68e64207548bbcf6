// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/inroot"
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

// readIn reads a regular file below dir; anything else is as good as absent.
func readIn(dir int, path string, limit int64) ([]byte, error) {
	f, err := inroot.OpenFile(dir, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %d bytes: %w", limit, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}
