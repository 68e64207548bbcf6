// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Groups are the directories of a cgroup: one for each hierarchy.
func Groups(name string) []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup" + name}
	}
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	var dirs []string
	for _, h := range hierarchies {
		dirs = append(dirs, filepath.Dir(h)+name)
	}
	return dirs
}

// RemoveGroup removes a cgroup and those below it, which are empty.
func RemoveGroup(dir string) {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // a mount point of a hierarchy of its own
		}
	}
}
