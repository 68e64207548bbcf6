// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	continuity "github.com/containerd/continuity/fs"
)

// completeness checks that a layer has the directory of each of its files, before it.
type completeness struct {
	root string
	has  map[string]bool // directories, by their names in the archive
}

// check checks a file before it is unpacked.
func (c *completeness) check(h *tar.Header) (bool, error) {
	dir := filepath.Dir(filepath.Clean(strings.TrimPrefix(h.Name, "/")))
	if c.has[dir] {
		return true, nil
	}
	path, err := continuity.RootPath(c.root, dir)
	if err != nil {
		return false, fmt.Errorf("directory of %s: %w", h.Name, err)
	}
	if st, err := os.Lstat(path); err != nil || !st.IsDir() {
		return false, fmt.Errorf("file %s: %w", h.Name, ErrNeedsParent)
	}
	c.has[dir] = true
	return true, nil
}
