// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// cgroupsPath returns where an OCI runtime makes the cgroup of id: parent/id for the cgroupfs
// driver, and slice:prefix:id for the systemd driver. A parent in the other driver's form is
// refused: the kubelet and the handler are set up for different drivers, and the pod would escape
// its limits.
func cgroupsPath(systemd bool, parent, id string) (string, error) {
	if strings.Contains(parent, "..") || strings.ContainsAny(parent, ":\n\x00") {
		return "", fmt.Errorf("cgroup_parent: %q is not a path below the root: %w", parent, errdefs.ErrInvalidArgument)
	}
	if systemd {
		slice := path.Base(parent)
		if parent == "" {
			slice = "system.slice"
		}
		if !strings.HasSuffix(slice, ".slice") {
			return "", fmt.Errorf("cgroup_parent: %q is not a systemd slice, and the cgroup driver of the runtime handler is systemd: %w", parent, errdefs.ErrInvalidArgument)
		}
		return slice + ":cri-containerd:" + id, nil
	}
	if strings.HasSuffix(parent, ".slice") {
		return "", fmt.Errorf("cgroup_parent: %q is a systemd slice, and the cgroup driver of the runtime handler is cgroupfs: %w", parent, errdefs.ErrInvalidArgument)
	}
	if parent == "" {
		parent = "/k8s.io"
	}
	return path.Join(parent, id), nil
}

// CgroupDir returns the path, within a hierarchy, of the cgroup that a container or sandbox of an
// ID has below a parent. The error is ErrInvalidArgument for a parent that is not one of this
// cgroup driver.
func CgroupDir(systemd bool, parent, id string) (string, error) {
	p, err := cgroupsPath(systemd, parent, id)
	if err != nil || !systemd {
		return p, err
	}
	part := strings.SplitN(p, ":", 3) // slice:prefix:name
	return path.Join(sliceDir(part[0]), part[1]+"-"+part[2]+".scope"), nil
}

// sliceDir returns the path of a slice of systemd's: a-b.slice is below a.slice (systemd.slice(5)).
func sliceDir(slice string) string {
	dir, name := "/", strings.TrimSuffix(slice, ".slice")
	for i, c := range name {
		if c == '-' && i > 0 {
			dir = path.Join(dir, name[:i]+".slice")
		}
	}
	if name == "-" { // the root
		return dir
	}
	return path.Join(dir, slice)
}
