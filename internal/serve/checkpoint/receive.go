// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxReceived bounds an archive that is received, in bytes, holes included, because a
	// compressed one can declare any number of zeros.
	maxReceived = 1 << 40
	// receivedPrefix begins the path of an archive that was received, which only this process can
	// name.
	receivedPrefix = "/proc/self/fd/"
)

// Receive writes an archive that comes from an image into a file without a name in Dir. The path is
// for Read and Unpack, until the caller calls done; nothing is left of the file then, nor when
// berth is killed. The archive is checked by Read alone. The error is ErrResourceExhausted if the
// disk has too little room.
func (a Archives) Receive(ctx context.Context, from io.Reader) (archive string, done func(), err error) {
	f, err := unnamedIn(a.Dir)
	if err != nil {
		return "", nil, fmt.Errorf("write the archive of a checkpoint: %w", ofDisk(err))
	}
	if err := receive(ctx, f, from); err != nil {
		return "", nil, errors.Join(err, f.Close())
	}
	return fmt.Sprintf("%s%d", receivedPrefix, f.Fd()), func() { _ = f.Close() }, nil
}

func receive(ctx context.Context, f *os.File, from io.Reader) error {
	to := newSparse(f, 0)
	w := bufio.NewWriterSize(to, 1<<20)
	n, err := io.Copy(w, io.LimitReader(until{ctx, from}, maxReceived+1))
	switch {
	case err != nil:
		return ofDisk(err)
	case n > maxReceived:
		return invalid("the archive has more than %d bytes", int64(maxReceived))
	}
	return ofDisk(errors.Join(w.Flush(), to.finish()))
}

// unnamedIn opens a new file without a name, so that it goes when the last process closes it. Not
// every file system makes one at once.
func unnamedIn(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		f, err := os.CreateTemp(dir, "checkpoint-*.tar")
		if err != nil {
			return nil, err
		}
		if err := os.Remove(f.Name()); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// about adds the archive to an error.
func about(archive string, err error) error {
	if strings.HasPrefix(archive, receivedPrefix) {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return fmt.Errorf("checkpoint %s: %w", archive, err)
}
