// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/inroot"
)

// MakeImageVolume makes an empty directory for the nth image that a container mounts, and returns
// its path. The caller mounts the image there; Remove unmounts it.
func (f *Files) MakeImageVolume(id string, n int) (string, error) {
	dir := filepath.Join(f.imageVolumes(id), strconv.Itoa(n))
	if err := errors.Join(private(f.imageVolumes(id)), os.MkdirAll(dir, 0o711)); err != nil {
		return "", fmt.Errorf("make image volume of container %s: %w", id, err)
	}
	if err := unmount(dir); err != nil {
		return "", fmt.Errorf("make image volume of container %s: %w", id, err)
	}
	return dir, nil
}

// MakeRootfs makes an empty directory for the root file system of a pod's pause process, which its
// image is mounted at, and returns its path. The OCI runtime enters it as the pod's root, which is
// the user uid of this host, so the directories above it are open only to root and that user.
// Remove unmounts it.
func (f *Files) MakeRootfs(id string, uid int) (string, error) {
	own := f.rootfs(id)
	dir := filepath.Join(own, "0")
	err := errors.Join(os.MkdirAll(filepath.Dir(own), 0o711), os.Chmod(filepath.Dir(own), 0o711), // the names in it are random
		os.MkdirAll(own, 0o700), os.Lchown(own, uid, -1), os.MkdirAll(dir, 0o711), unmount(dir))
	if err != nil {
		return "", fmt.Errorf("make directory for the root file system of sandbox %s: %w", id, err)
	}
	return dir, nil
}

// Below returns the path of the directory that path names below dir; "" names dir itself. Every
// link is resolved as if dir were the root directory, so that the result lies below dir. The
// content of dir must not change meanwhile, nor until the result is used. It returns
// ErrInvalidArgument if path does not exist or is not a directory.
func (f *Files) Below(dir, path string) (string, error) {
	if path == "" {
		return dir, nil
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	found, err := inroot.Find(root, path, unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", fmt.Errorf("%q does not exist in it: %w", path, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return "", fmt.Errorf("%q in it is not a directory: %w", path, errdefs.ErrInvalidArgument)
	case err != nil:
		return "", fmt.Errorf("find %q in %s: %w", path, dir, err)
	}
	defer unix.Close(found)
	host, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(found))
	if err != nil {
		return "", fmt.Errorf("find %q in %s: %w", path, dir, err)
	}
	return host, nil
}

// removeImageVolumes unmounts the images that a container mounts and removes their directories. A
// directory that is not empty afterwards is an error: nothing is deleted within a possible mount.
func (f *Files) removeImageVolumes(id string) error {
	return errors.Join(removeMounts(f.imageVolumes(id)), removeMounts(f.rootfs(id)))
}

// removeMounts unmounts all mounts on the directories below base, and removes the directories.
func removeMounts(base string) error {
	entries, err := os.ReadDir(base)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		if err := unmount(dir); err != nil {
			return err
		}
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Remove(base)
}

func (f *Files) imageVolumes(id string) string { return filepath.Join(f.state, "volumes", id) }
func (f *Files) rootfs(id string) string       { return filepath.Join(f.state, "rootfs", id) }
