// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/durable"
)

// early reads a layer, and has the kernel write back what is unpacked of it while it is unpacked.
// It goes by what it reads: what a layer has as a hole in a file does not count.
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
// which leads nowhere but into the directory, or a device in its place: so the file is opened once
// its type is known, since opening a device acts on it.
func (e *early) begin(name string) {
	found, err := unix.Openat2(int(e.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(found))
	if err != nil {
		return
	}
	defer f.Close()
	durable.Begin(f)
}
