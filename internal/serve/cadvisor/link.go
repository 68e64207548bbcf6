// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// link makes a symbolic link at path that leads to the socket at target. One that leads nowhere, or
// elsewhere into the directory of target, where an earlier berth may have had it lead, is replaced;
// anything else that is at path stays, and the error is fs.ErrExist.
func link(path, target string) error {
	if to, err := os.Readlink(path); err == nil {
		if to == target {
			return nil
		}
		_, err := os.Stat(path)
		if ours := strings.HasPrefix(to, filepath.Dir(target)+"/"); !ours && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link %s to %s: it leads to %s: %w", path, target, to, fs.ErrExist)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("link %s to %s: %w", path, target, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("link %s to %s: %w", path, target, err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("link %s to %s: %w", path, target, err)
	}
	return nil
}

// unlink removes a link at path that leads to target. Anything else stays.
func unlink(path, target string) error {
	if to, err := os.Readlink(path); err != nil || to != target {
		return nil // there is none
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the link to %s: %w", target, err)
	}
	return nil
}
