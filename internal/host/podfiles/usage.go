// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// VolumeUsage returns the disk usage of the volumes of a container's image. Files that are removed
// meanwhile do not count, and a file with several names counts once.
func (f *Files) VolumeUsage(ctx context.Context, id string) (bytes, inodes uint64, err error) {
	counted := map[uint64]bool{} // files with several names
	err = filepath.WalkDir(f.volumes(id), func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && path == f.volumes(id) {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !e.IsDir() {
			if counted[st.Ino] {
				return nil
			}
			counted[st.Ino] = true
		}
		bytes += uint64(st.Blocks) * 512
		inodes++
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("measure volumes of container %s: %w", id, err)
	}
	return bytes, inodes, nil
}
