// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// DefaultMaxBytes bounds the files that a container has changed, by their apparent size.
	DefaultMaxBytes = maxUnpacked
	// spareBytes is the space that a checkpoint leaves free on a disk, and spareEvery how many
	// bytes are written between two checks of that.
	spareBytes = 512 << 20
	spareEvery = 16 << 20
	// sparseBlock is how many zeros in a row are left out. A block of most file systems has as many.
	sparseBlock = 4 << 10
)

// sparse writes a file from its beginning and leaves zeros out, which take no room on the disk then
// and read as zeros all the same. A container can have a file of any length without its disk having
// the room. finish has to be called at the end.
type sparse struct {
	f       *os.File
	size    int64
	most    int64 // that size may be; 0: not bounded
	checked int64 // bytes that may be written before the disk is looked at again
	free    func(*os.File) (uint64, error)
}

func newSparse(f *os.File, most int64) *sparse { return &sparse{f: f, most: most, free: freeBytes} }

// Write writes p, and leaves holes for zeros. It returns ErrResourceExhausted if the file becomes
// too long, or the disk too full.
func (s *sparse) Write(p []byte) (int, error) {
	if s.most > 0 && s.size+int64(len(p)) > s.most {
		return 0, fmt.Errorf("the files that the container has changed have more than %d bytes, holes included; delete some: %w", s.most, errdefs.ErrResourceExhausted)
	}
	for rest := p; len(rest) > 0; {
		n := min(len(rest), sparseBlock-int(s.size%sparseBlock)) // up to the end of a block of the file
		if !bytes.Equal(rest[:n], zeros[:n]) {
			if err := s.room(int64(n)); err != nil {
				return len(p) - len(rest), err
			}
			if _, err := s.f.WriteAt(rest[:n], s.size); err != nil {
				return len(p) - len(rest), err
			}
		}
		s.size += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

var zeros [sparseBlock]byte

// room returns an error if the disk would have too little left for others.
func (s *sparse) room(n int64) error {
	if s.checked >= n {
		s.checked -= n
		return nil
	}
	free, err := s.free(s.f)
	if err != nil {
		return err
	}
	if free < spareBytes+spareEvery {
		return fmt.Errorf("the disk of %s has %d MiB left, and a checkpoint leaves %d; make room, or choose another place: %w",
			s.f.Name(), free>>20, (spareBytes+spareEvery)>>20, errdefs.ErrResourceExhausted)
	}
	s.checked = spareEvery - n
	return nil
}

func freeBytes(f *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// finish gives the file its length, which the last zeros did not.
func (s *sparse) finish() error { return s.f.Truncate(s.size) }

var _ io.Writer = (*sparse)(nil)
