// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/base/inroot"
	"berth/internal/images/durable"
)

// early reads a layer, and has the kernel write back its files while it is unpacked. It counts the
// bytes that it reads: a hole in a file does not count.
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

// begin begins the writeback of a regular file. A layer may have put a link in the way of its name,
// which leads nowhere but into the directory, or a device in its place.
func (e *early) begin(name string) {
	f, err := inroot.OpenFile(int(e.dir.Fd()), name)
	if err != nil {
		return
	}
	defer f.Close()
	durable.Begin(f)
}
