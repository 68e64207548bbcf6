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
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// fileMode and dirMode are those of the files and directories that are laid out. The files
	// cannot be written to, nor executed: a hard link has the mode that the content store has given
	// the blob.
	fileMode fs.FileMode = 0o444
	dirMode  fs.FileMode = 0o755
	// copyChunk is how much is copied before it is looked whether anybody still wants it, in bytes.
	copyChunk = 64 << 20
)

// Blobs has the blobs of an artifact on this node.
type Blobs interface {
	// Path returns the file of a blob; "" if it has none here.
	Path(f File) string
	// Open reads a blob that has no file, or one that cannot be linked to; ErrNotFound.
	Open(ctx context.Context, f File) (io.ReadCloser, error)
}

// Placed is the result of Place, in bytes.
type Placed struct {
	Shared int64 // that the blobs and the files have together
	Copied int64
}

// how is how a file came to be.
type how func(src *os.File, dst string) error

// Place lays the files of an artifact out in dir, which is empty and has no other writer. It shares
// the blocks of a blob by a reflink where the file system has that. Else it makes a hard link, so
// that the file and the blob are one: dir has to be mounted read-only. It copies where it can do
// neither, as a stream. ErrNotFound says that a blob is missing.
func Place(ctx context.Context, dir string, files []File, from Blobs) (Placed, error) {
	return place(ctx, dir, files, from, reflink, link)
}

func place(ctx context.Context, dir string, files []File, from Blobs, shared ...how) (p Placed, err error) {
	for _, f := range files {
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
		dst := filepath.Join(dir, filepath.FromSlash(f.Name))
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) { // Files has seen to that
			return p, fmt.Errorf("%q is not a name below a directory: %w", f.Name, errdefs.ErrInternal)
		}
		if err := makeDirs(dir, filepath.Dir(dst)); err != nil {
			return p, fmt.Errorf("lay out %s: %w", f.Name, err)
		}
		done, err := share(f, dst, from, shared)
		if err != nil {
			return p, fmt.Errorf("lay out %s: %w", f.Name, err)
		}
		if done {
			p.Shared += f.Blob.Size
			continue
		}
		if err := stream(ctx, f, dst, from); err != nil {
			return p, fmt.Errorf("lay out %s: %w", f.Name, err)
		}
		p.Copied += f.Blob.Size
	}
	return p, nil
}

// makeDirs makes the directories of a file. The bits of their mode that umask has taken are given
// back.
func makeDirs(root, dir string) error {
	if dir == root {
		return nil
	}
	if err := makeDirs(root, filepath.Dir(dir)); err != nil {
		return err
	}
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, dirMode)
}

// share makes a file of the blob's own blocks, if there is a way to.
func share(f File, dst string, from Blobs, ways []how) (bool, error) {
	path := from.Path(f)
	if path == "" {
		return false, nil
	}
	src, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) { // the store may have it elsewhere
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() || st.Size() != f.Blob.Size {
		return false, fmt.Errorf("its blob %s has %d bytes on this node, and %d in the manifest: %w", f.Blob.Digest, st.Size(), f.Blob.Size, errdefs.ErrFailedPrecondition)
	}
	for _, way := range ways {
		err := way(src, dst)
		if err == nil {
			return true, nil
		}
		if !cannot(err) {
			return false, err
		}
	}
	return false, nil
}

// cannot reports whether an error says that a file system does not have a feature.
func cannot(err error) bool {
	for _, no := range []unix.Errno{
		unix.EXDEV, unix.EPERM, unix.EMLINK, unix.ENOTSUP, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EBADF, unix.ETXTBSY,
	} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// reflink makes a file that shares the blocks of src until one of them is written to.
func reflink(src *os.File, dst string) error {
	out, err := create(dst)
	if err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(out.Fd()), int(src.Fd())); err != nil {
		return errors.Join(err, out.Close(), os.Remove(dst))
	}
	return out.Close()
}

// link makes a hard link to src. A blob that not everybody may read, or that somebody may write to,
// is not linked to: its mode is its store's to decide.
func link(src *os.File, dst string) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if st.Mode() != fileMode {
		return unix.EPERM
	}
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(src.Fd())), unix.AT_FDCWD, dst, unix.AT_SYMLINK_FOLLOW)
}

// create makes a file that is there for everybody to read once it was written.
func create(dst string) (*os.File, error) {
	f, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, fileMode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(fileMode); err != nil { // umask
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// stream copies a blob.
func stream(ctx context.Context, f File, dst string, from Blobs) error {
	in, err := from.Open(ctx, f)
	if err != nil {
		return fmt.Errorf("read its blob %s: %w", f.Blob.Digest, err)
	}
	defer in.Close()
	out, err := create(dst)
	if err != nil {
		return err
	}
	defer out.Close()
	var size int64
	for {
		n, err := io.CopyN(out, in, copyChunk)
		size += n
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("copy its blob %s: %w", f.Blob.Digest, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			break
		}
		if size > f.Blob.Size {
			break
		}
	}
	if size != f.Blob.Size {
		return fmt.Errorf("its blob %s has %d bytes on this node, and %d in the manifest: %w", f.Blob.Digest, size, f.Blob.Size, errdefs.ErrFailedPrecondition)
	}
	return out.Close()
}
