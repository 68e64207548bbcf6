// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Link makes a symbolic link to the server's API socket, for programs that look for containerd at
// one path alone: the cAdvisor in a kubelet does. A link that leads nowhere is replaced; anything
// else that is at the path stays, and the error is fs.ErrExist. [Server.Unlink] removes the link.
func (s *Server) Link(path string) error {
	target := s.cfg.address()
	if to, err := os.Readlink(path); err == nil {
		if to == target {
			return nil
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link to containerd's socket: %s leads to %s: %w", path, to, fs.ErrExist)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("link to containerd's socket: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("link to containerd's socket: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("link to containerd's socket: %w", err)
	}
	return nil
}

// Unlink removes a link that leads to the server's socket. Anything else stays.
func (s *Server) Unlink(path string) error {
	if to, err := os.Readlink(path); err != nil || to != s.cfg.address() {
		return nil //nolint:nilerr // there is none
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the link to containerd's socket: %w", err)
	}
	return nil
}
