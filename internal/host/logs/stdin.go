// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// stdin is the FIFO of a container's standard input. With [Options.StdinOnce] it ends with its
// first client, also if berth is killed while that client writes.
type stdin struct {
	o    *Options
	file *os.File // both ends, so that the container's stdin stays open
	// over is set if the only client that the stdin may have was one of an earlier berth's, which
	// ended without ending the stdin. If so, it cannot be opened any more.
	over bool
}

// taken is a file that marks a stdin that ends with its first client as used. If berth is killed,
// the client's end is lost with it, and the next berth must know.
const taken = "stdin.taken"

// open opens both ends, unless the stdin is over.
func (s *stdin) open() (err error) {
	if !s.o.Stdin {
		return nil
	}
	if _, err := os.Lstat(s.o.in(taken)); s.o.StdinOnce && err == nil {
		_ = os.Remove(s.o.in("stdin"))
		s.over = true
		return nil
	}
	if s.file, err = os.OpenFile(s.o.in("stdin"), os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return fmt.Errorf("open FIFO stdin: %w", err)
	}
	return nil
}

// writer opens the end that a client writes to: see [Attachment.OpenStdin].
func (s *stdin) writer() (io.WriteCloser, error) {
	if !s.o.Stdin {
		return nil, fmt.Errorf("the container has no stdin: %w", errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(s.o.in("stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err == nil && s.o.StdinOnce {
		var mark *os.File
		if mark, err = os.OpenFile(s.o.in(taken), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			err = mark.Close()
		}
		if err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the container's stdin is closed: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return f, nil
}

// close ends a stdin that ends with its first client, and reports whether it is one.
func (s *stdin) close() bool {
	if !s.o.Stdin || !s.o.StdinOnce {
		return false
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	_ = os.Remove(s.o.in("stdin")) // so that it is not opened again
	return true
}
