// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

// NewMounts makes a mount namespace for [Options], in which writes to some directories of this host
// go below dir instead: to dir/PATH/upper, where PATH has a dash for each slash. So a program that
// has paths built in leaves nothing on the host. It ends with the test.
func NewMounts(t testing.TB, dir string, private ...string) string {
	t.Helper()
	return mountNamespace(t, func() error {
		for _, path := range private {
			upper, work := Private(dir, path), Private(dir, path)+".work"
			for _, d := range []string{upper, work} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					return err
				}
			}
			if err := unix.Mount("overlay", path, "overlay", 0, "lowerdir="+path+",upperdir="+upper+",workdir="+work); err != nil {
				return fmt.Errorf("mount over %s: %w", path, err)
			}
		}
		return nil
	})
}

// mountNamespace makes a mount namespace, and the mounts in it. It ends with the test.
func mountNamespace(t testing.TB, mount func() error) string {
	t.Helper()
	fd := -1
	err := namespace.InThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := mount(); err != nil {
			return err
		}
		var err error
		fd, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
}

// Private is the directory in which [NewMounts] puts the writes to a directory.
func Private(dir, path string) string {
	return dir + "/" + strings.ReplaceAll(strings.Trim(path, "/"), "/", "-") + "/upper"
}

// NewUnified makes a mount namespace for [Options] in which this host has the unified hierarchy of
// control groups alone, as it has with cgroup v2, mounted with options. If the host has the
// hierarchies of cgroup v1, the unified one has no controllers; groups can be frozen and killed
// there all the same. It ends with the test.
func NewUnified(t testing.TB, options string) string {
	t.Helper()
	return mountNamespace(t, func() error {
		if err := unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the control groups: %w", err)
		}
		return mountUnified(options)
	})
}

func mountUnified(options string) error {
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount the unified hierarchy: %w", err)
	}
	return nil
}

// UnifiedOptions returns the options of the unified hierarchy, which each mount of it has, sorted.
func UnifiedOptions(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, super, ok := strings.Cut(strings.TrimSpace(line), " - cgroup2 "); ok {
			_, options, _ := strings.Cut(super, " ")
			all := strings.Split(options, ",")
			slices.Sort(all)
			return slices.DeleteFunc(all, func(o string) bool { return o == "rw" || o == "ro" })
		}
	}
	t.Fatal("the unified hierarchy is not mounted")
	return nil
}
