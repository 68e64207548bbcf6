// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Volume is a directory or file of the host. Type is the type of a hostPath volume, or [emptyDir]
// or [memoryDir].
type Volume struct {
	Name, Path, Type string
	Size             int64 // of a memoryDir, in bytes; 0 means half of the machine's memory
	// owns an empty directory, which gives it to the files in it; nil means none
	Group *int64
}

// Not types of hostPath volumes in the API: an empty directory on the disk, and one in memory.
const (
	emptyDir  = "EmptyDir"
	memoryDir = "EmptyDirInMemory"
)

func (t *translation) volumes() {
	dir := path.Join(t.options.VolumeDir, string(t.pod.UID))
	for i, v := range t.pod.Spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		if !dnsLabel.MatchString(v.Name) || len(v.Name) > 63 {
			t.bad(field+".name", "%q is not lower-case letters, digits and hyphens", v.Name)
			continue
		}
		if slices.ContainsFunc(t.plan.Volumes, func(p Volume) bool { return p.Name == v.Name }) {
			t.bad(field+".name", "%s is used twice", v.Name)
		}
		// A kind of volume that is not supported was reported by unsupported already. When such
		// fields are ignored, an empty directory takes the volume's place, so that its mounts work.
		planned := Volume{Name: v.Name, Path: path.Join(dir, v.Name), Type: emptyDir, Group: t.fsGroup()}
		if v.EmptyDir != nil {
			t.emptyDir(field+".emptyDir", v.EmptyDir, &planned)
		}
		if v.HostPath != nil {
			kind := corev1.HostPathUnset
			if v.HostPath.Type != nil {
				kind = *v.HostPath.Type
			}
			if !path.IsAbs(v.HostPath.Path) || slices.Contains(strings.Split(v.HostPath.Path, "/"), "..") {
				t.bad(field+".hostPath.path", "%q is not an absolute path without ..", v.HostPath.Path)
			}
			planned = Volume{Name: v.Name, Path: path.Clean(v.HostPath.Path), Type: string(kind)}
		}
		t.plan.Volumes = append(t.plan.Volumes, planned)
	}
}

// emptyDir translates where an empty directory is, and how large it may become. Only the file
// system of one in memory has a size: the kubelet holds one on the disk to its limit by eviction.
func (t *translation) emptyDir(field string, e *corev1.EmptyDirVolumeSource, to *Volume) {
	switch e.Medium {
	case corev1.StorageMediumDefault:
	case corev1.StorageMediumMemory:
		to.Type = memoryDir
	default:
		t.bad(field+".medium", "%q is not Memory, or left out", e.Medium)
		return
	}
	switch size := e.SizeLimit; {
	case size == nil:
	case size.Sign() < 0:
		t.bad(field+".sizeLimit", "%s is negative", size.String())
	case to.Type == memoryDir:
		to.Size = size.Value()
	case t.options.IgnoreUnsupported:
		t.plan.Ignored = append(t.plan.Ignored, field+".sizeLimit")
	default:
		t.bad(field+".sizeLimit", "nothing limits a directory on the disk; use medium: Memory, remove it, or use --ignore-unsupported")
	}
}

// fsGroup returns the group of the pod's volumes; nil means none.
func (t *translation) fsGroup() *int64 {
	if sc := t.pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// Prepare creates the volume if its type requires that, and checks that it has its type. The modes
// are the kubelet's.
func (v Volume) Prepare() error {
	switch corev1.HostPathType(v.Type) {
	case emptyDir, memoryDir:
		if err := v.makeEmptyDir(); err != nil {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(v.Path, 0o755); err != nil {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(v.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
	}
	st, err := os.Stat(v.Path)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	if !v.matches(st.Mode()) {
		return fmt.Errorf("volume %s: %s is not of type %s", v.Name, v.Path, v.Type)
	}
	return nil
}

// makeEmptyDir makes the directory writable for every user, because a container may run as any
// user. The directory above it keeps other users of the host out.
func (v Volume) makeEmptyDir() error {
	if err := errors.Join(os.MkdirAll(filepath.Dir(v.Path), 0o700), os.MkdirAll(v.Path, 0o777)); err != nil {
		return err
	}
	if v.Type == memoryDir {
		if err := v.mount(); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o777)
	if v.Group != nil {
		if err := os.Chown(v.Path, -1, int(*v.Group)); err != nil {
			return fmt.Errorf("give it to the group %d of fsGroup, which only root can: %w", *v.Group, err)
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(v.Path, mode) // MkdirAll applies the umask
}

// mount mounts a file system in memory at the directory, unless there is one.
func (v Volume) mount() error {
	var own, above unix.Stat_t
	if err := errors.Join(unix.Stat(v.Path, &own), unix.Stat(filepath.Dir(v.Path), &above)); err != nil || own.Dev != above.Dev {
		return err
	}
	options := ""
	if v.Size > 0 {
		options = fmt.Sprintf("size=%d", v.Size)
	}
	if err := unix.Mount("tmpfs", v.Path, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount a tmpfs, which only root can: %w", err)
	}
	return nil
}

func (v Volume) matches(m fs.FileMode) bool {
	switch corev1.HostPathType(v.Type) {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return m.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		return m.IsRegular()
	case corev1.HostPathSocket:
		return m&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		return m&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
	}
	return true
}

// RemoveVolumes removes the emptyDir volumes of the pod with this UID below dir. A pod whose UID is
// not a plain word has none there, because its UID comes from the maker of the pod and must not
// lead elsewhere.
func RemoveVolumes(dir, uid string) error {
	if !plainWord.MatchString(uid) {
		return nil
	}
	own := filepath.Join(dir, uid)
	entries, err := os.ReadDir(own)
	for _, e := range entries {
		// EINVAL: nothing is mounted there. EPERM: a user without root has mounted nothing.
		if uerr := unix.Unmount(filepath.Join(own, e.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); uerr != nil && !errors.Is(uerr, unix.EINVAL) && !errors.Is(uerr, unix.EPERM) {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", e.Name(), uerr))
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(own)
	}
	if err != nil {
		return fmt.Errorf("remove the volumes of pod %s: %w", uid, err)
	}
	return nil
}
