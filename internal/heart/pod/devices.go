// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/containerd/errdefs"

	"berth/internal/host/spec"
)

// maxDeviceFiles is how many files a directory of devices may hold, devices or not: a directory
// such as / is not searched to its end.
const maxDeviceFiles = 8192

// hostDevices resolves a device node, or the nodes in a directory.
func hostDevices(path string) ([]spec.Device, error) {
	node, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	var found []spec.Device
	seen := 0
	err = filepath.WalkDir(node, func(p string, _ fs.DirEntry, err error) error {
		switch seen++; {
		case errors.Is(err, fs.ErrNotExist) && p != node:
			return nil // it was removed meanwhile
		case err != nil:
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		case seen > maxDeviceFiles:
			return fmt.Errorf("%s holds more than %d files: %w", path, maxDeviceFiles, errdefs.ErrInvalidArgument)
		}
		if d, ok := spec.DeviceAt(p); ok {
			d.Path = path + p[len(node):]
			found = append(found, d)
		}
		if len(found) > spec.MaxDevices {
			return fmt.Errorf("%s holds more than %d device nodes: %w", path, spec.MaxDevices, errdefs.ErrInvalidArgument)
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s is not a device: %w", path, errdefs.ErrInvalidArgument)
	}
	return found, err
}
