// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SyncLayer puts the layer in dir onto the disk, with the index at path and the directories that
// they are in. It does so file by file.
func SyncLayer(dir, path string) error {
	err := walk(dir, func(name string, isDir bool) error {
		if isDir {
			return nil
		}
		return syncFile(filepath.Join(dir, name))
	})
	if err != nil {
		return err
	}
	err = walk(dir, func(name string, isDir bool) error {
		if !isDir {
			return nil
		}
		return syncPath(filepath.Join(dir, name))
	})
	if err == nil {
		err = syncPath(path)
	}
	for range 2 { // the directory of the layer, and that of all layers
		path = filepath.Dir(path)
		err = errors.Join(err, syncPath(path))
	}
	return err
}

// syncFile puts a regular file onto the disk. An empty file is synced with its directory.
func syncFile(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return &fs.PathError{Op: "fsync", Path: path, Err: err}
	}
	return nil
}
