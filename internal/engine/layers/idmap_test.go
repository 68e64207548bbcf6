// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
	"berth/internal/host/spec"
	"berth/test/embedtest"
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
	cfg := embedtest.Config(t)
	cfg.Snapshotter = "overlayfs"
	conn := connection.Through(embedtest.Start(t, cfg).Client())
	can, err := mapsOwnersOf(filepath.Join(cfg.Root, "io.containerd.snapshotter.v1.overlayfs", "snapshots"))
	try(t, err)
	layers := New(conn, Config{Owner: "test", Logger: slog.New(slog.DiscardHandler)})
	for n := 1; n <= 3; n++ {
		image := ""
		for l := range n {
			image = layerOn(t, conn, image, fmt.Sprintf("%d-%d", n, l), fmt.Sprintf("file%d", l))
		}
		dir := t.TempDir()
		t.Cleanup(func() { try(t, mount.UnmountAll(dir, unix.MNT_DETACH)) })
		err := layers.MountImage(t.Context(), pod.ImageView{
			Snapshotter: "overlayfs",
			Key:         fmt.Sprintf("view-%d", n),
			ChainID:     image,
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

// layerOn makes a layer with a file of user 7 and group 8 on another layer, and returns its name.
func layerOn(t *testing.T, conn *connection.Connection, parent, name, file string) string {
	t.Helper()
	ctx, s := connection.Namespaced(t.Context()), conn.SnapshotService("overlayfs")
	keep := keeping("test", spec.UserIDs{})
	ms, err := s.Prepare(ctx, "new-"+name, parent, keep)
	try(t, err)
	try(t, mount.WithTempMount(ctx, ms, func(root string) error {
		path := filepath.Join(root, file)
		return errors.Join(os.WriteFile(path, nil, 0o700), os.Chown(path, 7, 8))
	}))
	try(t, s.Commit(ctx, name, "new-"+name, keep))
	return name
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
