// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// inThread runs f in a thread of its own, which f leaves in other namespaces and which then ends.
// It is never the main thread: that one cannot end, and /proc/PID/ns shows its namespaces as those
// of the process.
func inThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- inThread(f) // the next goroutine gets another thread, since this one is locked
			runtime.UnlockOSThread()
			return
		}
		done <- f() // it stays locked, so that the Go runtime ends the thread with the goroutine
	}()
	return <-done
}

// enter moves this thread into the network namespace that is pinned at path.
func enter(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// setSysctls writes settings of the namespaces that this thread is in: the kernel shows each thread
// those of its own.
func setSysctls(values map[string]string) error {
	for name, v := range values {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(v), 0o600); err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", name, v, err)
		}
	}
	return nil
}

// isPinned reports whether path holds a namespace, not only the file that it would be mounted on.
// An error says that nobody could look.
func isPinned(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && st.Type == unix.NSFS_MAGIC, err
}

// unpin takes away what is mounted at path, and the file below.
func unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing is mounted there any more
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
