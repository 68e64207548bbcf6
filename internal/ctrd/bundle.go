// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// taskDir is where containerd keeps bundles, below its state directory.
const taskDir = "/io.containerd.runtime.v2.task/" + Namespace + "/"

// removeBundle takes away the bundle of a task that containerd does not know any more: its clean-up after a dead shim can be cut
// short, and is not tried again before containerd starts anew. containerd does not say where its bundles are; the mounts of
// any that has a root filesystem do.
func removeBundle(id string) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for bundle of %s: %w", id, err)
	}
	for _, dir := range bundleDirs(string(info)) {
		bundle := filepath.Join(dir, id)
		if _, err := os.Lstat(bundle); errors.Is(err, os.ErrNotExist) {
			continue
		}
		rootfs := filepath.Join(bundle, "rootfs")
		for unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil { // one mount may cover another
		}
		// Never recursively: a root filesystem that is still mounted is the image's and the container's.
		if err := os.Remove(rootfs); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove bundle of %s: %w", id, err)
		}
		if work, err := os.Readlink(filepath.Join(bundle, "work")); err == nil && filepath.Base(work) == id {
			if err := os.RemoveAll(work); err != nil {
				return fmt.Errorf("remove bundle of %s: %w", id, err)
			}
		}
		if err := os.RemoveAll(bundle); err != nil {
			return fmt.Errorf("remove bundle of %s: %w", id, err)
		}
	}
	return nil
}

// bundleDirs are the directories of bundles that the mounts tell of, each once.
func bundleDirs(mountinfo string) []string {
	var dirs []string
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasSuffix(f[4], "/rootfs") {
			continue
		}
		before, _, ok := strings.Cut(f[4], taskDir)
		if dir := before + taskDir; ok && !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
