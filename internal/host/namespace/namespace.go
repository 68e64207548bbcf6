// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InThread runs f in a thread of its own, which f leaves in other namespaces and which then ends.
// It is never the main thread, because that one cannot end, and /proc/PID/ns shows its namespaces
// as those of the process.
func InThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- InThread(f) // the next goroutine gets another thread, because this one is locked
			runtime.UnlockOSThread()
			return
		}
		done <- f() // it stays locked, so that the Go runtime ends the thread with the goroutine
	}()
	return <-done
}

// EnterNetwork moves this thread into the network namespace that is pinned at path. It is called
// within [InThread].
func EnterNetwork(path string) error {
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

// IsPinned reports whether path holds a namespace, not only the file that it would be mounted on.
// An error means that the path could not be examined.
func IsPinned(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && st.Type == unix.NSFS_MAGIC, err
}

// Unpin unmounts every mount at path, and removes the file below. The namespace ends with the last
// process in it.
func Unpin(path string) error {
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
