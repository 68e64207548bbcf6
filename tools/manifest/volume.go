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

	corev1 "k8s.io/api/core/v1"
)

// Volume is a directory or file of the host. Type is the type of a hostPath volume, or [emptyDir].
type Volume struct {
	Name, Path, Type string
}

// emptyDir is not a type of hostPath volumes in the API.
const emptyDir = "EmptyDir"

// volumes translates the pod's volumes.
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
		planned := Volume{v.Name, path.Join(dir, v.Name), emptyDir}
		if v.HostPath != nil {
			kind := corev1.HostPathUnset
			if v.HostPath.Type != nil {
				kind = *v.HostPath.Type
			}
			if !path.IsAbs(v.HostPath.Path) || slices.Contains(strings.Split(v.HostPath.Path, "/"), "..") {
				t.bad(field+".hostPath.path", "%q is not an absolute path without ..", v.HostPath.Path)
			}
			planned = Volume{v.Name, path.Clean(v.HostPath.Path), string(kind)}
		}
		t.plan.Volumes = append(t.plan.Volumes, planned)
	}
}

// Prepare creates the volume where its type asks for that, and checks that it is what its type
// says. The modes are those that the kubelet uses.
func (v Volume) Prepare() error {
	switch corev1.HostPathType(v.Type) {
	case emptyDir:
		return v.makeEmptyDir()
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
	err := os.MkdirAll(filepath.Dir(v.Path), 0o700)
	if err == nil {
		err = os.MkdirAll(v.Path, 0o777)
	}
	if err == nil {
		err = os.Chmod(v.Path, 0o777) // MkdirAll applies the umask
	}
	if err != nil {
		return fmt.Errorf("make volume %s: %w", v.Name, err)
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
// not a plain word has none there; its UID comes from whoever made the pod and must not lead
// elsewhere.
func RemoveVolumes(dir, uid string) error {
	if !plainWord.MatchString(uid) {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(dir, uid)); err != nil {
		return fmt.Errorf("remove the volumes of pod %s: %w", uid, err)
	}
	return nil
}
