// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
)

// RemoveAdopted removes the files of another runtime for a sandbox or a container that berth
// adopted: directories, with all mounts below them, and files. A directory whose name is not the ID
// is refused. Absent paths are not an error.
func (f *Files) RemoveAdopted(id string, dirs, files []string) error {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || filepath.Base(dir) != id {
			return fmt.Errorf("remove files of adopted %s: %s is not a directory of its own: %w", id, dir, errdefs.ErrInvalidArgument)
		}
		if err := unmountBelow(dir); err != nil {
			return fmt.Errorf("remove files of adopted %s: %w", id, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove files of adopted %s: %w", id, err)
		}
	}
	var errs []error
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove files of adopted %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts all that is mounted on a directory and below it, the deepest first. If
// anything is mounted there afterwards, it returns an error, because deleting the directory would
// delete the content of the mount.
func unmountBelow(dir string) error {
	for range 2 {
		points, err := mountsBelow(dir)
		if err != nil || len(points) == 0 {
			return err
		}
		for _, p := range points {
			if err := unmount(p); err != nil {
				return err
			}
		}
	}
	points, err := mountsBelow(dir)
	if err == nil && len(points) > 0 {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	return err
}

// mountsBelow lists the mount points on a directory and below it, the deepest first.
func mountsBelow(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir) // the kernel knows no links, and /var/run is one
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("look for mounts below %s: %w", dir, err)
	}
	var points []string
	for _, m := range found {
		points = append(points, m.Mountpoint)
	}
	slices.SortFunc(points, func(a, b string) int { return strings.Compare(b, a) })
	return points, nil
}
