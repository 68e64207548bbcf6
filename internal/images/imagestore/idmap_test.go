// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/heart/pod"
	"berth/internal/host/spec"
	"berth/test/testimage"
)

// User namespaces were advertised because the snapshotter could shift owners, on a kernel that
// cannot on the file system of the layers: no container started. PROPERTIES 22.
func TestOwnersAreMappedOnlyWhereTheFileSystemCan(t *testing.T) {
	if ok, err := mapsOwnersOf("/proc"); ok || err != nil {
		t.Errorf("/proc: %v, %v", ok, err)
	}
	if ok, err := mapsOwnersOf(t.TempDir() + "/absent"); ok || err == nil {
		t.Errorf("no directory: %v, %v", ok, err)
	}
	if _, err := mapsOwnersOf(t.TempDir()); err != nil { // whether it can depends on the host
		t.Error(err)
	}
}

// PROPERTIES 26: the files of a mounted image belong to the user namespace of its pod, however many
// layers the image has. A view of one layer is a bind mount, whose owners nobody shifted: its files
// belonged to nobody. Where the kernel cannot shift them the mount is refused.
func TestTheOwnersOfAMountedImageAreShifted(t *testing.T) {
	i, snapshotsDir := parallelStore(t)
	can, err := mapsOwnersOf(snapshotsDir)
	try(t, err)
	layers := &Layers{client: i.client, owner: "test"}
	for n := 1; n <= 3; n++ {
		var files [][]testimage.File
		for l := range n {
			files = append(files, []testimage.File{{
				Name: fmt.Sprintf("file%d", l),
				Mode: 0o700,
				UID:  7,
				GID:  8,
			}})
		}
		st := imported(t, i, layersOf(t, files...))
		dir := t.TempDir()
		t.Cleanup(func() { try(t, mount.UnmountAll(dir, unix.MNT_DETACH)) })
		err := layers.MountImage(t.Context(), pod.ImageView{
			Snapshotter: "overlayfs",
			Key:         fmt.Sprintf("view-%d", n),
			ChainID:     st.ChainID,
			Dir:         dir,
			IDs:         spec.UserIDs{UID: 200000, UIDs: 65536, GID: 300000, GIDs: 65536},
		})
		if !can {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%d layers, on a file system that cannot map owners: %v", n, err)
			}
			continue
		}
		try(t, err)
		for l := range n {
			info, err := os.Stat(filepath.Join(dir, fmt.Sprintf("file%d", l)))
			try(t, err)
			owner := info.Sys().(*syscall.Stat_t)
			if owner.Uid != 200007 || owner.Gid != 300008 || info.Mode() != 0o700 {
				t.Errorf("a file of an image of %d layers belongs to %d:%d, %s", n, owner.Uid, owner.Gid, info.Mode())
			}
		}
		var s unix.Statfs_t
		try(t, unix.Statfs(dir, &s))
		if want := int64(unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID); s.Flags&want != want {
			t.Errorf("an image of %d layers is mounted with flags %x", n, s.Flags)
		}
	}
}
