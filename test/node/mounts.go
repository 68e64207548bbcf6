// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/namespace"
)

// NewMounts makes a mount namespace for [Options], in which what is written to some directories of
// this host is written below dir instead: to dir/PATH/upper, where PATH has a dash for each slash.
// So a program that has paths built in leaves nothing on the host. It ends with the test.
func NewMounts(t testing.TB, dir string, private ...string) string {
	t.Helper()
	fd := -1
	err := namespace.InThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
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

// Private is where [NewMounts] puts what is written to a directory.
func Private(dir, path string) string {
	return dir + "/" + strings.ReplaceAll(strings.Trim(path, "/"), "/", "-") + "/upper"
}
