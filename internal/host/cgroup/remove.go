// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

// RemoveAll ends the processes of a group and removes the group, with all groups below it, from
// every hierarchy. path is the group as in the OCI spec of a container: /PARENT/ID on cgroupfs, and
// SLICE:PREFIX:ID with the systemd driver, where the group belongs to a scope, which is stopped.
// Removing an absent group succeeds. The root group is refused. found is true if there was a
// process to end, even if RemoveAll returns an error.
func RemoveAll(ctx context.Context, path string) (found bool, err error) {
	if unit, ok := scopeOf(path); ok {
		return stopScope(ctx, unit)
	}
	path = filepath.Clean("/" + path)
	if path == "/" {
		return false, errors.New("remove cgroup /: the root group cannot be removed")
	}
	hierarchies := []string{mount}
	if !V2() {
		var err error
		if hierarchies, err = filepath.Glob(mount + "/*"); err != nil {
			return false, fmt.Errorf("remove cgroup %s: %w", path, err)
		}
	}
	var errs []error
	for _, h := range hierarchies {
		f, err := removeTree(ctx, filepath.Join(h, path))
		found, errs = found || f, append(errs, err)
	}
	return found, errors.Join(errs...)
}

func removeTree(ctx context.Context, dir string) (found bool, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if found, err = killAll(ctx, dir); err != nil {
		return found, err
	}
	for range retry.Doubling(ctx.Done(), firstLook, slowestLook) {
		err := rmdirs(dir)
		if !errors.Is(err, unix.EBUSY) { // a process that was killed has not left yet
			return found, err
		}
	}
	return found, fmt.Errorf("remove cgroup %s: %w", dir, ctx.Err())
}

func rmdirs(dir string) error {
	dirs, err := tree(dir)
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", d, err)
		}
	}
	return nil
}
