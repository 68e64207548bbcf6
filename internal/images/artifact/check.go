// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrWrong says that a file is not as it was laid out.
var ErrWrong = errors.New("not as it was laid out")

// Check compares the files of an artifact that are laid out in dir with their blobs. It reads a
// file unless that is a hard link to its blob, which the caller looks at by itself. The error wraps
// ErrWrong, or is the one for which it cannot tell.
func Check(ctx context.Context, dir string, files []File, from Blobs) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its directory is missing: %w", ErrWrong)
	}
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		if err := compare(ctx, root, f, from); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// compare compares one file with its blob.
func compare(ctx context.Context, root *os.Root, f File, from Blobs) error {
	file, err := root.OpenFile(filepath.FromSlash(f.Name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("it is missing: %w", ErrWrong)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Mode() != fileMode || st.Size() != f.Blob.Size {
		return fmt.Errorf("it has %d bytes and the mode %s: %w", st.Size(), st.Mode(), ErrWrong)
	}
	if path := from.Path(f); path != "" {
		if blob, err := os.Lstat(path); err == nil && os.SameFile(st, blob) {
			return nil
		}
	}
	v := f.Blob.Digest.Verifier()
	for {
		n, err := io.CopyN(v, file, copyChunk)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && n > 0:
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case !v.Verified():
			return fmt.Errorf("it has other bytes than its blob: %w", ErrWrong)
		}
		return nil
	}
}
