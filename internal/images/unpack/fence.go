// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package unpack

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Fence returns nil where the kernel can keep a process that unpacks a layer to the layer's own
// directory, by Landlock, or why it cannot.
func Fence() error {
	_, err := landlock()
	return err
}

// fence keeps the process, in all threads and for ever, to the files of the request. If a layer
// misleads containerd's code, it still opens nothing else. Without Landlock nothing is done.
func (r request) fence() error {
	all, err := landlock()
	// A process that syncs does not read the content of the layer, and opens the directory of all
	// layers.
	if err != nil || r.Work == syncing || r.Work == syncingAll {
		return nil // berth says it when it starts
	}
	return restrict(all, r.needs(all), func(set uintptr) unix.Errno {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0)
		return errno
	})
}

// needs returns the rights below each directory that the process needs: the layer's, that of its
// index, its parents', and its own in /proc, by which it knows how much memory it has used.
func (r request) needs(all uint64) map[string]uint64 {
	need := map[string]uint64{fmt.Sprintf("/proc/%d", os.Getpid()): reads}
	for _, parent := range r.Target.Parents {
		need[parent] = reads
	}
	if r.Target.Dir != "" {
		need[r.Target.Dir] = reads
	}
	if r.igzip != nil {
		need[fmt.Sprintf("/proc/%d", r.igzip.process.Pid)] = reads // and how much igzip has used
	}
	if r.Target.Index != "" {
		need[filepath.Dir(r.Target.Index)] = all
	}
	switch {
	case r.Work == "" && r.Target.Dir != "":
		need[r.Target.Dir] = all
	case r.Work == checking && r.Target.Index != "":
		need[filepath.Dir(r.Target.Index)] = reads
	}
	return need
}
