// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Close stops Run. The files in Dir stay for Open, and so does the output that waits in the pipes.
// It does not wait, and always returns nil.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil
	}
	l.mu.closed = true
	close(l.closing)
	l.tees.end()
	l.keeper.close()
	for _, s := range l.streams {
		s.detach()
	}
	l.closeFilesLocked()
	return nil
}

// closeFilesLocked closes the open files once they have no users.
func (l *Log) closeFilesLocked() {
	if !l.mu.closed || l.mu.users > 0 || l.mu.done {
		return
	}
	l.mu.done = true
	files := append([]*os.File{l.stdin.file, l.out.cursor}, l.mu.keep...)
	for _, s := range l.streams {
		files = append(files, s.spool)
	}
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
	if l.out.file != nil {
		_ = l.out.file.Close()
	}
}

// Remove closes and removes the stdio, and ends the logger; the log stays. It is idempotent.
func (l *Log) Remove() error {
	_ = l.Close()
	return RemoveAll(l.o.Dir)
}

// RemoveAll removes the stdio in dir, whether berth or another runtime made it, and ends its
// logger. The stdio must not be in use any more. It is idempotent.
func RemoveAll(dir string) error {
	dismiss(dir)
	// The cursor goes first: without it Open finds no stdio, even if the removal is cut off
	// afterwards.
	if err := os.Remove(filepath.Join(dir, "cursor")); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("remove stdio: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove stdio: %w", err)
	}
	return nil
}
