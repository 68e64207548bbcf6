// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/continuity/sysx"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/images/image"
)

const (
	// maxVolumeBytes and maxVolumeFiles bound the copies out of an image for all volumes of a
	// container together.
	maxVolumeBytes = 1 << 30
	maxVolumeFiles = 1 << 16
)

// CopyOut copies directories of the image, each by its path into the directory that it has in dirs.
// A link in a path is followed within the image only. ErrInvalidArgument: they are too
// large together.
func (rd *Reader) CopyOut(ctx context.Context, r image.Root, dirs map[string]string) error {
	return rd.view(ctx, r, func(root string) error { return copyOut(ctx, root, dirs) })
}

// copyOut copies directories below root. They are measured first, which they can be because a view
// does not change. Several paths may lead to one directory, which is copied for each, and counts
// for each.
func copyOut(ctx context.Context, root string, dirs map[string]string) error {
	budget := volumeBudget{maxVolumeFiles, maxVolumeBytes}
	sources := map[string]string{} // by path
	for _, path := range slices.Sorted(maps.Keys(dirs)) {
		src, err := continuity.RootPath(root, path)
		if err != nil {
			return fmt.Errorf("find %s in image: %w", path, err)
		}
		st, err := os.Lstat(src)
		if errors.Is(err, os.ErrNotExist) || err == nil && !st.IsDir() {
			continue
		}
		if err != nil {
			return err
		}
		if err := budget.charge(ctx, src); err != nil {
			return fmt.Errorf("copy %s of image: %w", path, err)
		}
		sources[path] = src
	}
	for path, src := range sources {
		if err := copyTree(ctx, src, dirs[path]); err != nil {
			return fmt.Errorf("copy %s of image: %w", path, err)
		}
	}
	return nil
}

// volumeBudget is how much may still be copied for a container.
type volumeBudget struct{ files, bytes int64 }

// charge refuses a tree that is too large to be copied for each container.
func (b *volumeBudget) charge(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if b.files--; b.files < 0 {
			return fmt.Errorf("the volumes of the image have more than %d files together; mount volumes there: %w", maxVolumeFiles, errdefs.ErrInvalidArgument)
		}
		if !e.Type().IsRegular() {
			return nil
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if b.bytes -= st.Size(); b.bytes < 0 {
			return fmt.Errorf("the volumes of the image have more than %d bytes together; mount volumes there: %w", maxVolumeBytes, errdefs.ErrInvalidArgument)
		}
		return nil
	})
}

// copyTree copies a directory, with all that is below it, into a directory that exists. It ends
// with ctx.
func copyTree(ctx context.Context, src, dst string) error {
	links := map[uint64]string{} // the first name of a file that has several, by its inode
	var dirs []string            // their times change as long as something is written into them
	err := filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		st, err := e.Info()
		if err != nil {
			return err
		}
		if e.IsDir() {
			dirs = append(dirs, rel)
			if err := os.Mkdir(to, 0o700); err != nil && (path != src || !errors.Is(err, fs.ErrExist)) {
				return err
			}
			return copyAttributes(path, to, st)
		}
		raw := st.Sys().(*syscall.Stat_t)
		if first, again := links[raw.Ino]; again {
			return os.Link(first, to)
		}
		if raw.Nlink > 1 {
			links[raw.Ino] = to
		}
		if err := copyFile(ctx, path, to, st); err != nil {
			return err
		}
		return copyAttributes(path, to, st)
	})
	for _, rel := range slices.Backward(dirs) {
		if err == nil {
			var st fs.FileInfo
			if st, err = os.Lstat(filepath.Join(src, rel)); err == nil {
				err = copyTimes(filepath.Join(dst, rel), st)
			}
		}
	}
	return err
}

// copyFile copies anything but a directory.
func copyFile(ctx context.Context, src, dst string, st fs.FileInfo) error {
	raw := st.Sys().(*syscall.Stat_t)
	switch st.Mode().Type() {
	case 0:
		return copyContent(ctx, src, dst)
	case fs.ModeSymlink:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		return os.Symlink(target, dst)
	default: // a FIFO, a socket, or a device
		return unix.Mknod(dst, raw.Mode, int(raw.Rdev)) // the number of a device is small
	}
}

// copyContent copies a regular file without its zeros. continuity's copy does not end with a ctx.
func copyContent(ctx context.Context, src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(copySparse(ctx, out, in), out.Close())
}

func copySparse(ctx context.Context, out *os.File, in io.Reader) error {
	var size int64
	buf, zeros := make([]byte, 128<<10), make([]byte, 128<<10)
	for {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := out.WriteAt(buf[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return out.Truncate(size)
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// copyAttributes gives a copy the owner, the mode, the extended attributes and the times of a file.
func copyAttributes(src, dst string, st fs.FileInfo) error {
	raw := st.Sys().(*syscall.Stat_t)
	if err := os.Lchown(dst, int(raw.Uid), int(raw.Gid)); err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSymlink {
		if err := os.Chmod(dst, st.Mode()); err != nil { // after chown, which takes bits away
			return err
		}
	}
	names, err := sysx.LListxattr(src)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("extended attributes of %s: %w", src, err)
	}
	for _, name := range names {
		value, err := sysx.LGetxattr(src, name)
		if err == nil {
			err = sysx.LSetxattr(dst, name, value, 0)
		}
		if err != nil {
			return fmt.Errorf("extended attribute %s of %s: %w", name, src, err)
		}
	}
	return copyTimes(dst, st)
}

func copyTimes(dst string, st fs.FileInfo) error {
	raw := st.Sys().(*syscall.Stat_t)
	times := []unix.Timespec{
		unix.NsecToTimespec(raw.Atim.Nano()),
		unix.NsecToTimespec(raw.Mtim.Nano()),
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, unix.AT_SYMLINK_NOFOLLOW)
}
