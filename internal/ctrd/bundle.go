// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/connection"
)

// taskDir is the directory of bundles below containerd's state directory.
const taskDir = "/io.containerd.runtime.v2.task/" + connection.Namespace + "/"

// sandboxDir is the directory of the bundles of shims that are sandboxes, beside taskDir.
const sandboxDir = "/io.containerd.sandbox.controller.v1.shim/" + connection.Namespace + "/"

// removeBundle removes the bundle of a task that containerd does not know any more: containerd's
// clean-up after a dead shim can be cut short, and containerd does not try again before its next
// start. A bundle that containerd could not remove to the end is called .ID, and is in the way of
// the removal of the next one. Containerd does not say where its bundles are. The mounts of root
// filesystems do, those of any task. The working directories of shims do, too; they are in known, as
// is the directory beside containerd's socket.
func removeBundle(id string, known []string) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for the bundle of %s: %w", id, err)
	}
	for _, dir := range slices.Concat(bundleDirs(string(info)), known) {
		for _, dir := range []string{dir, strings.TrimSuffix(dir, taskDir) + sandboxDir} {
			for _, name := range []string{id, "." + id} {
				if err := removeBundleAt(filepath.Join(dir, name), id); err != nil {
					return fmt.Errorf("remove the bundle of %s: %w", id, err)
				}
			}
		}
	}
	return nil
}

// bundleLeft reports whether a task may have a bundle, or the rest of one, in one of the directories.
func bundleLeft(id string, dirs []string) bool {
	for _, dir := range dirs {
		for _, name := range []string{id, "." + id} {
			if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
				return true
			}
		}
	}
	return false
}

func removeBundleAt(bundle, id string) error {
	if _, err := os.Lstat(bundle); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	rootfs := filepath.Join(bundle, "rootfs")
	for unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil { // one mount may cover another
	}
	// Not recursively: what is in a root filesystem that is still mounted belongs to the container.
	if err := os.Remove(rootfs); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	work, err := os.Readlink(filepath.Join(bundle, "work"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not a link
		return err
	}
	if err == nil && filepath.Base(work) == id {
		if err := os.RemoveAll(work); err != nil {
			return err
		}
	}
	return os.RemoveAll(bundle)
}

// bundleDirs returns the directories of bundles that occur in a mountinfo (proc_pid_mountinfo(5)),
// each once.
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
