// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	selabel "github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

const (
	// defaultShm is the size of a pod's /dev/shm, in bytes, as other runtimes have it.
	defaultShm = 64 << 20
	// etcSize is the size of the tmpfs for a pod's hosts, hostname and resolv.conf, in bytes.
	etcSize = 1 << 20
)

// Files makes and removes the pods' files below two directories.
type Files struct {
	root  string // persistent
	state string // volatile
	paths *hostPaths
}

// New returns the files below root, which survives a reboot, and state, which need not. Both must
// exist or be makeable when something is made. It restricts the permissions of directories that an
// earlier berth left open to other users.
func New(root, state string) *Files {
	f := &Files{root: root, state: state, paths: newHostPaths(makeDirectory)}
	for _, dir := range []string{f.sandbox("x"), f.volumes("x"), f.imageVolumes("x")} {
		_ = os.Chmod(filepath.Dir(dir), 0o700) // it need not be there; private looks again
	}
	return f
}

// private makes a directory for one sandbox or container, within a directory that only root may
// enter: other users of the host cannot reach its content. A process that has a mount of it need
// not enter. An OCI runtime opens the sources of mounts as root of the host, also for a user
// namespace.
func private(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o711)
}

// Sandbox describes the files that the containers of one pod share.
type Sandbox struct {
	ID         string
	Hostname   []byte
	ResolvConf []byte
	// ShmSize is the size of /dev/shm in bytes; 0: 64 MiB.
	ShmSize int64
	// UID and GID are the owner of the files: the pod's root, as this host numbers it.
	UID, GID int
	// Label is the SELinux label of the files; "" for none.
	Label string
	// HostIPC is set if the pod uses the host's /dev/shm, so that none is mounted.
	HostIPC bool
}

// MakeSandbox makes the files of a pod, of which SetHosts writes /etc/hosts. Files from an earlier
// attempt are made again.
func (f *Files) MakeSandbox(s Sandbox) error {
	if err := private(f.sandbox(s.ID)); err != nil {
		return fmt.Errorf("make files of sandbox %s: %w", s.ID, err)
	}
	etc := filepath.Join(f.sandbox(s.ID), "etc")
	if err := mountTmpfs(etc, 0o755, etcSize, s.Label); err != nil {
		return fmt.Errorf("make files of sandbox %s: %w", s.ID, err)
	}
	for name, content := range map[string][]byte{"hosts": nil, "hostname": s.Hostname, "resolv.conf": s.ResolvConf} {
		if err := os.WriteFile(filepath.Join(etc, name), content, 0o644); err != nil { // read by any user in the pod
			return fmt.Errorf("make files of sandbox %s: %w", s.ID, err)
		}
		if err := os.Lchown(filepath.Join(etc, name), s.UID, s.GID); err != nil {
			return fmt.Errorf("make files of sandbox %s: %w", s.ID, err)
		}
	}
	if s.HostIPC {
		return nil
	}
	size := s.ShmSize
	if size <= 0 {
		size = defaultShm
	}
	if err := mountTmpfs(filepath.Join(f.sandbox(s.ID), "shm"), 0o1777, size, s.Label); err != nil {
		return fmt.Errorf("make /dev/shm of sandbox %s: %w", s.ID, err)
	}
	if err := os.Lchown(filepath.Join(f.sandbox(s.ID), "shm"), s.UID, s.GID); err != nil {
		return fmt.Errorf("make /dev/shm of sandbox %s: %w", s.ID, err)
	}
	return nil
}

// SetHosts writes /etc/hosts of a pod that MakeSandbox has made.
func (f *Files) SetHosts(id string, hosts []byte) error {
	file, err := os.OpenFile(filepath.Join(f.sandbox(id), "etc", "hosts"), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = file.Write(hosts)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("write hosts of sandbox %s: %w", id, err)
	}
	return nil
}

// Shared returns the host path of each file that a pod's containers share, by its path in the
// container.
func (f *Files) Shared(podID string, hostIPC bool) map[string]string {
	dir := f.sandbox(podID)
	files := map[string]string{
		"/etc/hosts":       filepath.Join(dir, "etc", "hosts"),
		"/etc/hostname":    filepath.Join(dir, "etc", "hostname"),
		"/etc/resolv.conf": filepath.Join(dir, "etc", "resolv.conf"),
		"/dev/shm":         filepath.Join(dir, "shm"),
	}
	if hostIPC {
		files["/dev/shm"] = "/dev/shm"
	}
	return files
}

// MakeVolume makes an empty directory for the nth volume of a container's image and returns its
// path.
func (f *Files) MakeVolume(id string, n int) (string, error) {
	if err := private(f.volumes(id)); err != nil {
		return "", fmt.Errorf("make volume of container %s: %w", id, err)
	}
	dir := filepath.Join(f.volumes(id), strconv.Itoa(n))
	if err := os.Mkdir(dir, 0o755); err != nil { // the image's own users read it
		return "", fmt.Errorf("make volume of container %s: %w", id, err)
	}
	return dir, nil
}

// MakeCheckpoint makes an empty directory for the checkpoint that a container is restored from, and
// returns its path. Only root may read it, because a checkpoint contains the memory of a container.
func (f *Files) MakeCheckpoint(id string) (string, error) {
	dir := f.Checkpoint(id)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o700), os.Mkdir(dir, 0o700)); err != nil {
		return "", fmt.Errorf("make directory for the checkpoint of container %s: %w", id, err)
	}
	return dir, nil
}

// RemoveCheckpoint removes the directory that MakeCheckpoint has made, as Remove does. An absent
// directory is not an error.
func (f *Files) RemoveCheckpoint(id string) error { return os.RemoveAll(f.Checkpoint(id)) }

// Checkpoint returns the directory that MakeCheckpoint makes.
func (f *Files) Checkpoint(id string) string { return filepath.Join(f.root, "restores", id) }

// IO returns the directory for the stdio of a container. Its content belongs to package logs, which
// also removes it.
func (f *Files) IO(id string) string { return filepath.Join(f.state, "io", id) }

// Remove unmounts and removes everything of one sandbox or container but its stdio.
func (f *Files) Remove(id string) error {
	for _, name := range []string{"shm", "etc"} {
		if err := unmount(filepath.Join(f.sandbox(id), name)); err != nil {
			return fmt.Errorf("remove files of %s: %w", id, err)
		}
	}
	if err := errors.Join(f.removeImageVolumes(id), os.RemoveAll(f.sandbox(id)), os.RemoveAll(f.volumes(id)), os.RemoveAll(f.Checkpoint(id))); err != nil {
		return fmt.Errorf("remove files of %s: %w", id, err)
	}
	return nil
}

// IDs lists every sandbox and container that has a directory here. A directory that does not
// exist yet holds nothing.
func (f *Files) IDs() ([]string, error) {
	found := map[string]bool{}
	var errs []error
	for _, dir := range []string{f.sandbox("x"), f.IO("x"), f.volumes("x"), f.imageVolumes("x"), f.rootfs("x"), f.Checkpoint("x")} {
		base := filepath.Dir(dir)
		entries, err := os.ReadDir(base)
		if err != nil && !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("list files of pods: %w", err))
		}
		for _, e := range entries {
			found[e.Name()] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), errors.Join(errs...)
}

func (f *Files) sandbox(id string) string { return filepath.Join(f.state, "sandboxes", id) }
func (f *Files) volumes(id string) string { return filepath.Join(f.root, "volumes", id) }

// mountTmpfs makes dir and mounts a tmpfs of size bytes on it, whose files have a SELinux label if
// one is given. A mount from an interrupted attempt is unmounted first, so that mounts do not pile
// up.
func mountTmpfs(dir string, mode uint32, size int64, label string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := unmount(dir); err != nil {
		return err
	}
	options := selabel.FormatMountLabel(fmt.Sprintf("mode=%o,size=%d", mode, size), label)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// unmount detaches all mounts on path, even if they are in use. Nothing mounted, or no such path,
// is not an error.
func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // more may be mounted below
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("unmount %s: %w", path, err)
	}
}
