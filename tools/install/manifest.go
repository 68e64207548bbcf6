// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/base/wholefile"
)

// Files is the name of the list in an archive: the files to install, with their sums, in the format
// of sha256sum.
const Files = "FILES"

// parse reads lines of a sum and a path, which sha256sum -c reads as well. Others begin with #.
func parse(text []byte) (lines [][2]string, err error) {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		sum, path, ok := strings.Cut(line, "  ")
		if !ok || path == "" || path != filepath.Clean(path) || strings.HasPrefix(path, "..") {
			return nil, fmt.Errorf("%q is not a sum and a path", line)
		}
		lines = append(lines, [2]string{sum, path})
	}
	return lines, nil
}

// manifest is the record of an installation on a host. The zero value means that nothing was
// installed.
type manifest struct {
	file  string              // where it is
	sums  map[string][]string // of each file, as it was written: more than one while it is replaced
	dirs  []string            // directories that were made, outer ones first
	begun bool                // an install has begun, and is not known to have ended
}

const (
	about      = "# What berth install wrote, for berth install --uninstall: sums of files, and directories.\n"
	unfinished = "# An install has begun.\n"
	directory  = "directory" // instead of a sum
)

// load reads the manifest of a host; fs.ErrNotExist is not an error.
func load(file string) (*manifest, error) {
	m := &manifest{file: file, sums: map[string][]string{}}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lines, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for _, l := range lines {
		if l[0] == directory {
			m.dirs = append(m.dirs, l[1])
		} else {
			m.sums[l[1]] = append(m.sums[l[1]], l[0])
		}
	}
	m.begun = bytes.Contains(text, []byte(unfinished))
	return m, nil
}

// paths are the paths of its files, sorted.
func (m *manifest) paths() []string {
	var all []string
	for path := range m.sums {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// add notes that a file is written or was.
func (m *manifest) add(path, sum string) {
	if !slices.Contains(m.sums[path], sum) {
		m.sums[path] = append(m.sums[path], sum)
	}
}

// wrote reports whether the file at path, with that sum, is of an install.
func (m *manifest) wrote(path, sum string) bool { return slices.Contains(m.sums[path], sum) }

// save writes the manifest. Its directory is there.
func (m *manifest) save() error {
	var b bytes.Buffer
	b.WriteString(about)
	if m.begun {
		b.WriteString(unfinished)
	}
	for _, d := range m.dirs {
		fmt.Fprintf(&b, "%s  %s\n", directory, d)
	}
	for _, path := range m.paths() {
		for _, sum := range m.sums[path] {
			fmt.Fprintf(&b, "%s  %s\n", sum, path)
		}
	}
	if err := replace(m.file, b.Bytes(), 0o644); err != nil {
		return err
	}
	return wholefile.SyncDir(filepath.Dir(m.file))
}

// replace writes a file that is there whole or not at all, and is on the disk.
func replace(path string, body []byte, mode fs.FileMode) error {
	if err := wholefile.Write(path, body, mode, -1, -1); err != nil {
		return err
	}
	replaced()
	return nil
}

// replaced is called after each file that was replaced. A test ends the process there.
var replaced = func() {}
