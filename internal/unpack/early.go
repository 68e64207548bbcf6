// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/durable"
)

// early reads a layer, and gives the disk what is unpacked of it while it is unpacked.
type early struct {
	io.Reader
	dir   *os.File // where it is unpacked
	pace  durable.Early
	files []string // written since the last time; the last one may be written still
}

// file notes that a file comes next in the layer.
func (e *early) file(h *tar.Header) {
	if h.Typeflag == tar.TypeReg && h.Size > 0 {
		e.files = append(e.files, filepath.Clean(strings.TrimLeft(h.Name, "/")))
	}
}

// Read reads the next bytes.
func (e *early) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if e.pace.Wrote(n) && len(e.files) > 0 {
		for _, name := range e.files {
			e.begin(name)
		}
		e.files = append(e.files[:0], e.files[len(e.files)-1])
	}
	return n, err
}

// begin gives the disk a file. A layer may have put links in the way of its name, which lead nowhere but into
// the directory.
func (e *early) begin(name string) {
	fd, err := unix.Openat2(int(e.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	durable.Begin(f)
}
