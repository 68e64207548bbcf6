// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MountPoint is a mount of this host, and how it takes part in the propagation of mounts
// (mount_namespaces(7)).
type MountPoint struct {
	Path   string
	Shared bool // mounts below it are propagated to its peers, and from them
	Slave  bool // mounts are propagated to it
}

// checkPropagation refuses a mount whose source cannot propagate as requested: the kernel would
// make the mount without an error, and later mounts would never appear in it.
func checkPropagation(h Host, m *runtimeapi.Mount) error {
	if h.MountAt == nil || m.GetImage() != nil || m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return nil
	}
	at, err := h.MountAt(m.GetHostPath())
	if err != nil {
		return fmt.Errorf("mount %s: find the mount that host_path %s is on: %w", m.GetContainerPath(), m.GetHostPath(), err)
	}
	both := m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	if at.Shared || at.Slave && !both {
		return nil
	}
	wants, lacks := "HostToContainer", "neither a shared nor a slave mount"
	if both {
		wants, lacks = "Bidirectional", "not a shared mount"
	}
	return fmt.Errorf("mount %s: propagation %s: host_path %s is on %s, which is %s; run `mount --make-rshared %s` on the node: %w",
		m.GetContainerPath(), wants, m.GetHostPath(), at.Path, lacks, at.Path, errdefs.ErrFailedPrecondition)
}

// mountAt finds the mount that a path is on. It uses the kernel's mount ID, so that links, and
// mounts that hide others, are resolved as by the OCI runtime.
func mountAt(path string) (MountPoint, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return MountPoint{}, fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return MountPoint{}, err
	}
	id := -1
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			if id, err = strconv.Atoi(strings.TrimSpace(v)); err != nil {
				return MountPoint{}, fmt.Errorf("read the number of its mount: %w", err)
			}
		}
	}
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return i.ID != id, i.ID == id })
	if err != nil {
		return MountPoint{}, err
	}
	if len(found) == 0 {
		return MountPoint{}, fmt.Errorf("mount %d is not among those of this process", id)
	}
	m := MountPoint{Path: found[0].Mountpoint}
	for f := range strings.FieldsSeq(found[0].Optional) {
		m.Shared = m.Shared || strings.HasPrefix(f, "shared:")
		m.Slave = m.Slave || strings.HasPrefix(f, "master:")
	}
	return m, nil
}
