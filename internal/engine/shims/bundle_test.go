// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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

// PROPERTIES 6: what an OCI runtime had made in the bundle while the root filesystem was unmounted
// kept the bundle from being removed, for ever: the next start of the container failed, and nothing
// of it was released.
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

// another has a directory of bundles that belongs to another user, with a bundle in it that is
// called as berth's is, and a link in the bundle to a directory of that name. A file system is
// mounted in it.
func another(t *testing.T, state, id string) (kept []string) {
	t.Helper()
	bundle, victim := filepath.Join(state, TaskDir, id), filepath.Join(t.TempDir(), id)
	rootfs := filepath.Join(bundle, "rootfs")
	for _, d := range []string{rootfs, victim} {
		try(t, os.MkdirAll(d, 0o700))
	}
	image := t.TempDir()
	file := filepath.Join(image, "file")
	try(t, os.WriteFile(file, nil, 0o600))
	try(t, os.Symlink(victim, filepath.Join(bundle, "work")))
	try(t, unix.Mount(image, rootfs, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
	return []string{bundle, victim, filepath.Join(rootfs, "file")}
}

func expectKept(t *testing.T, kept []string) {
	t.Helper()
	for _, path := range kept {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("it was not left alone: %v", err)
		}
	}
}

// PROPERTIES 54: every directory of bundles in the table of mounts was taken for one of berth's
// containerd. A user of the host can have such a directory, with a link in it to what berth was to
// delete; and where the directory was closed to a berth without root, its releases were tried for
// ever.
func TestTheBundlesOfANeighbourAreLeftAlone(t *testing.T) {
	kept := another(t, t.TempDir(), thisID)
	s := New(Config{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	try(t, s.EndLeft(t.Context(), Task{ID: thisID, Root: t.TempDir()}))
	expectKept(t, kept)
}

// PROPERTIES 54: a directory that is where containerd's probably is, and that somebody else has
// made or can change, is not containerd's. Nothing in it is believed, and nothing is removed.
func TestADirectoryThatOthersCouldHaveMadeIsNotContainerds(t *testing.T) {
	for name, spoil := range map[string]func(state string) error{
		"of another user":         func(state string) error { return os.Chown(state, 65534, 65534) },
		"another user's below it": func(state string) error { return os.Chown(filepath.Join(state, TaskDir), 65534, 65534) },
		"anybody may write to it": func(state string) error { return os.Chmod(state, 0o777) },
		"its group may":           func(state string) error { return os.Chmod(filepath.Dir(filepath.Join(state, TaskDir)), 0o775) },
		"another user's above it": func(state string) error { return os.Chown(filepath.Dir(state), 65534, 65534) },
		"anybody may rename it":   func(state string) error { return os.Chmod(filepath.Dir(state), 0o777) },
		"a link in the place of it": func(state string) error {
			dir := filepath.Dir(filepath.Join(state, TaskDir))
			return errors.Join(os.Rename(dir, dir+".other"), os.Symlink(dir+".other", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "run/containerd")
			kept := another(t, state, thisID)
			s := New(Config{StateDir: state, Logger: slog.New(slog.DiscardHandler)})
			if !s.BundleLeft(thisID) {
				t.Fatal("a bundle of berth's is not seen")
			}
			try(t, spoil(state))
			t.Cleanup(func() { _ = errors.Join(os.Chmod(filepath.Dir(state), 0o700), os.Chmod(state, 0o700)) })
			if s.BundleLeft(thisID) {
				t.Error("it is believed")
			}
			try(t, s.EndLeft(t.Context(), Task{ID: thisID, Root: t.TempDir()}))
			expectKept(t, kept)
		})
	}
}

// PROPERTIES 54: a containerd whose state directory is not beside its socket had no bundles for a
// berth that was started after the shims had died.
func TestAStateDirectoryThatAShimHasShownIsKnownToTheNextBerth(t *testing.T) {
	state, learned := t.TempDir(), make(chan string, 2)
	another(t, state, thisID)
	cfg := Config{
		StateDir: t.TempDir(),
		Learned:  func(state string) { learned <- state },
		Logger:   slog.New(slog.DiscardHandler),
	}
	s := New(cfg)
	s.shown(filepath.Join(state, TaskDir, thisID))
	s.shown(filepath.Join(state, SandboxDir, "another"))
	s.shown("/somewhere/else")
	s.Wait()
	if got := <-learned; got != state || len(learned) > 0 {
		t.Errorf("berth was told of %s, and %d times more", got, len(learned))
	}
	next := New(cfg)
	if next.BundleLeft(thisID) {
		t.Fatal("a bundle is known too early")
	}
	next.Learn(state)
	if !next.BundleLeft(thisID) || len(learned) > 0 {
		t.Error("the next berth does not look where a shim was")
	}
}

// PROPERTIES 6, 33: a directory that cannot be looked at is not without bundles.
func TestABundleThatCannotBeLookedForMayBeThere(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "loop")
	try(t, os.Symlink(loop, loop))
	s := New(Config{StateDir: loop, Logger: slog.New(slog.DiscardHandler)})
	if !s.BundleLeft(thisID) {
		t.Error("there is none, says a directory that was not looked at")
	}
	if err := s.EndLeft(t.Context(), Task{ID: thisID, Root: t.TempDir()}); err == nil {
		t.Error("nothing is left, says a directory that was not looked at")
	}
}
