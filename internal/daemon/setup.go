// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// The modes of berth's own directories. Root holds images and records, which are nobody else's
// business. State has to be traversable: a container in a user namespace reaches its root file
// system through it.
const (
	rootMode  = 0o700
	stateMode = 0o711
)

// makeDir makes a directory of berth's own, or takes one that exists. A mode that allows more than
// this one is reduced to it: an earlier version, a package or a person may have made the directory.
// A directory of another user is refused, because its owner could open it to others again.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("use directory %s: it belongs to user %d; give it to user %d with chown, or configure another directory", path, sys.Uid, os.Geteuid())
	}
	if have := st.Mode().Perm(); have&^mode != 0 {
		if err := os.Chmod(path, have&mode); err != nil {
			return fmt.Errorf("reduce the mode of directory %s from %o: %w", path, have, err)
		}
	}
	return nil
}

// findLibexec returns the directory of the shim, runc and the pause program. Without a configured
// one it looks where BERTH_LIBEXEC says, beside the binary, and in /usr/local.
func findLibexec(configured string) (string, error) {
	candidates := []string{configured}
	if configured == "" {
		candidates = []string{os.Getenv("BERTH_LIBEXEC")}
		if exe, err := os.Executable(); err == nil {
			bin := filepath.Dir(exe)
			candidates = append(candidates, filepath.Join(bin, "../libexec/berth"), filepath.Join(bin, "../libexec"))
		}
		candidates = append(candidates, "/usr/local/libexec/berth")
	}
	for _, d := range candidates {
		if d == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(d, "pause")); err == nil {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("find the pause program: it is in none of %q; install berth with `berth install` from an archive or with `make install`, or set --libexec to its directory", candidates)
}

// cniDirs returns the directories of the CNI plug-ins that berth brings along.
func cniDirs(libexec string) []string {
	dirs := []string{filepath.Join(libexec, "cni"), filepath.Join(libexec, "../cni")}
	if d := os.Getenv("BERTH_CNI_BIN"); d != "" {
		dirs = append(dirs, d)
	}
	return dirs
}

// installPause makes the root file system that all pause processes share and returns its path. It
// contains the program and mount points, and is read-only to the processes.
func installPause(libexec, dir string) (string, error) {
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"dev", "proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", fmt.Errorf("install the pause program: %w", err)
		}
	}
	b, err := os.ReadFile(filepath.Join(libexec, "pause"))
	if err != nil {
		return "", fmt.Errorf("install the pause program: %w", err)
	}
	path := filepath.Join(root, "pause")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
		return root, nil
	}
	next := path + ".new" // a program that runs cannot be written to (ETXTBSY), only replaced
	// a program has to be executable
	if err := errors.Join(os.WriteFile(next, b, 0o755), os.Rename(next, path)); err != nil {
		return "", fmt.Errorf("install the pause program: %w", err)
	}
	return root, nil
}
