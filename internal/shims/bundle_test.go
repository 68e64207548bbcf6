// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A bundle that containerd's clean-up has left is removed although its root filesystem is mounted,
// and what is on that root filesystem stays.
func TestABundleThatWasLeftIsRemoved(t *testing.T) {
	base := t.TempDir()
	bundles := filepath.Join(base, "state", TaskDir)
	work := filepath.Join(base, "root", "left")
	image := filepath.Join(base, "image")
	for _, d := range []string{
		filepath.Join(bundles, "left/rootfs"),
		filepath.Join(bundles, "alive/rootfs"),
		filepath.Join(bundles, "bare"),
		filepath.Join(bundles, ".bare/below"), // what containerd was removing
		work,
		image,
	} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	try(t, os.WriteFile(filepath.Join(image, "file"), nil, 0o600))
	try(t, os.Symlink(work, filepath.Join(bundles, "left/work")))
	for _, id := range []string{"left", "alive"} {
		rootfs := filepath.Join(bundles, id, "rootfs")
		if err := unix.Mount(image, rootfs, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
	}
	for _, id := range []string{"left", "bare", "absent"} {
		if err := removeBundle(id, []string{bundles}); err != nil {
			t.Error(err)
		}
	}
	for path, want := range map[string]bool{
		filepath.Join(bundles, "left"):              false,
		filepath.Join(bundles, "bare"):              false,
		filepath.Join(bundles, ".bare"):             false,
		work:                                        false,
		filepath.Join(bundles, "alive/rootfs/file"): true,
		filepath.Join(image, "file"):                true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// PROPERTIES 6: what an OCI runtime had made in the bundle while the root filesystem was unmounted kept the
// bundle from being removed, for ever: the next start of the container failed, and nothing of it was
// released.
func TestABundleIsRemovedWhoseMountPointIsNotEmpty(t *testing.T) {
	bundles := filepath.Join(t.TempDir(), TaskDir)
	rootfs := filepath.Join(bundles, "left/rootfs")
	try(t, os.MkdirAll(filepath.Join(rootfs, "dev/shm"), 0o700))
	try(t, os.Symlink("/", filepath.Join(rootfs, "dev/fd")))
	try(t, removeBundle("left", []string{bundles}))
	if _, err := os.Stat(filepath.Join(bundles, "left")); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// What is mounted when the mount point is about to be cleared, or somewhere in it, is not touched.
func TestWhatIsMountedInABundleIsNotTouched(t *testing.T) {
	image, rootfs := t.TempDir(), filepath.Join(t.TempDir(), "rootfs")
	file := filepath.Join(image, "file")
	try(t, os.WriteFile(file, nil, 0o600))
	try(t, os.MkdirAll(filepath.Join(rootfs, "dev"), 0o700))
	mount := func(on string) {
		try(t, unix.Mount(image, on, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(on, unix.MNT_DETACH) })
	}

	below, err := openBelow(rootfs)
	try(t, err)
	defer below.Close()
	mount(rootfs)
	try(t, clearBelow(below))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("what was mounted meanwhile: %v", err)
	}
	if err := removeMountPoint(rootfs); err == nil {
		t.Error("a mount point was removed that is mounted on")
	}
	try(t, unix.Unmount(rootfs, unix.MNT_DETACH))

	inside := filepath.Join(rootfs, "inside")
	try(t, os.Mkdir(inside, 0o700))
	mount(inside)
	if err := removeMountPoint(rootfs); err == nil {
		t.Error("a directory was removed in which something is mounted")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("what is mounted in it: %v", err)
	}
}

// The mounts that a berth in a user namespace inherits from a containerd of root's kept everything that it
// released from being removed: what is in a directory that it may not enter, it cannot know.
func TestTheBundlesOfRootAreNotThoseOfAUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), TaskDir)
	try(t, os.MkdirAll(dir, 0o700))
	if closed(dir) || closed(filepath.Join(dir, "absent")) {
		t.Error("a directory of one's own is closed")
	}
	runtime.LockOSThread() // the user that files are looked for as is that of a thread
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(65534); err != nil {
		t.Fatal(err)
	}
	isClosed := closed(dir)
	if _, err := unix.SetfsuidRetUid(0); err != nil {
		t.Fatal(err)
	}
	if !isClosed {
		t.Error("a directory of root's alone is open to a user")
	}
}
