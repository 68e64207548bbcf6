// SPDX-License-Identifier: Apache-2.0

package inroot

import (
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

// Find finds the file that path names below the directory dir, and returns a descriptor of it that
// reads and writes nothing (O_PATH in open(2)). flags are additional flags of openat2(2). It
// returns the kernel's error. The caller closes the descriptor.
func Find(dir int, path string, flags uint64) (int, error) {
	return find(dir, path, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_XDEV)
}

// find is Find with another way to resolve links.
func find(dir int, path string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for {
		found, err := unix.Openat2(dir, path, &how)
		// something was renamed or mounted, anywhere
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		return found, err
	}
}

// OpenFile opens the regular file that path names below the directory dir for reading. Any other
// kind of file counts as absent: the error is fs.ErrNotExist. The caller closes the file.
func OpenFile(dir int, path string) (*os.File, error) {
	found, err := Find(dir, path, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", path, err)
	}
	defer unix.Close(found)
	return reopen(found, path)
}

// OpenLog opens the log of a container for reading, whose path is below the directory of its pod's
// logs. The parent of that directory, such as /var/log/pods, is the administrator's, and its path
// may lead through links. The directory is made for one pod, and a pod that writes to
// /var/log/pods, as collectors of logs do, could put a link, a FIFO or a device in its place, or
// anywhere below it: no link is followed, and a file that is not regular counts as absent. The
// error is then ELOOP or fs.ErrNotExist. The caller closes the file.
func OpenLog(dir, path string) (*os.File, error) {
	parent, name := filepath.Split(filepath.Clean(dir))
	if !filepath.IsAbs(dir) || name == "" || !filepath.IsLocal(path) {
		return nil, fmt.Errorf("the log %q is not below %q: %w", path, dir, fs.ErrInvalid)
	}
	at, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: parent, Err: err}
	}
	defer unix.Close(at)
	path = filepath.Join(name, path)
	found, err := find(at, path, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(parent, path), Err: err}
	}
	defer unix.Close(found)
	return reopen(found, filepath.Join(parent, path))
}

// reopen opens the file found for reading, if it is a regular file.
func reopen(found int, path string) (*os.File, error) {
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

// OpenGiven opens a regular file of at most limit bytes for reading, at a path that the
// administrator, the kubelet or a device plug-in has given. Links are followed. Any other kind of
// file is ErrInvalidArgument, and a FIFO without a writer is not waited for. The caller closes the
// file.
func OpenGiven(path string, limit int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() > limit) {
		err = fmt.Errorf("%s is not a regular file of at most %d bytes: %w", path, limit, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// ReadGiven reads such a file.
func ReadGiven(path string, limit int64) ([]byte, error) {
	f, err := OpenGiven(path, limit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit { // it grew meanwhile
		err = fmt.Errorf("%s has more than %d bytes: %w", path, limit, errdefs.ErrInvalidArgument)
	}
	return b, err
}
