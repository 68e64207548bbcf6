// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Delegate gives a user the group of a container of cgroup v2: its directory, and the files in it
// that the kernel lists for that ("Delegation" of the kernel's cgroup-v2). The limits of the group
// stay those of root. runc does the same with systemd's driver alone, and crun in a user namespace.
func Delegate(dir string, uid int) error {
	list, err := os.ReadFile("/sys/kernel/cgroup/delegate")
	if err != nil {
		return fmt.Errorf("delegate the cgroup %s: %w", dir, err)
	}
	for _, name := range append([]string{"."}, strings.Fields(string(list))...) {
		if err := os.Lchown(filepath.Join(dir, name), uid, -1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delegate the cgroup: %w", err) // the file is of a controller that it has not
		}
	}
	return nil
}
