// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/base/processors"
	"berth/internal/images/durable"
)

// work is a task for a process on a layer that is unpacked already. A layer decides how much memory
// that takes, as it does when it is unpacked.
type work string

const (
	checking   work = "check"                // compare it with its index
	indexing   work = "index"                // write its index, if it has none
	syncing    work = "sync"                 // put it onto the disk, with its index
	syncingAll work = "sync the file system" // that the directory is in
)

// Check compares a layer with its index. It returns durable.ErrWrong with the first difference,
// durable.ErrNoIndex, or the error for which it cannot tell. With idle set, everybody else goes
// first.
func Check(ctx context.Context, dir, index string, idle bool) error {
	return with(ctx, checking, dir, index, idle)
}

// SyncAll puts everything in a file system onto the disk. of is any file or directory of it. A
// write that has failed since that was opened is an error, even if the kernel has reported it
// elsewhere. Before Linux 5.8 the kernel does not tell: the error is ErrUnsupported, and nothing is
// synced. SyncAll returns when ctx ends, though the kernel may not end the process before the disk
// has answered.
func SyncAll(ctx context.Context, of *os.File) error {
	if !syncTells() {
		return fmt.Errorf("sync the file system of %s: before Linux 5.8 the kernel does not say whether it could: %w", of.Name(), errors.ErrUnsupported)
	}
	done := make(chan error, 1)
	go func() {
		r := request{Memory: Memory, Work: syncingAll, file: of}
		_, err := r.run(ctx, strings.NewReader(""))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			err = fmt.Errorf("sync the file system of %s: %w", of.Name(), err)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// syncTells reports whether syncfs returns the errors of what was written before it.
func syncTells() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 8)
}

// WriteIndex writes the index of a layer that has none, and everybody else goes first.
func WriteIndex(ctx context.Context, dir, index string) error {
	return with(ctx, indexing, dir, index, true)
}

// Sync puts a layer that has an index onto the disk, and everybody else goes first. If it fails,
// the layer may be lost from the disk though it can be read, and a second Sync does not tell.
func Sync(ctx context.Context, dir, index string) error {
	return with(ctx, syncing, dir, index, true)
}

// with has a process do something with a layer.
func with(ctx context.Context, what work, dir, index string, idle bool) error {
	r := request{
		Target: Target{Dir: dir, Index: index},
		Memory: Memory,
		Work:   what,
		Idle:   idle,
	}
	if _, err := r.run(ctx, strings.NewReader("")); err != nil {
		return fmt.Errorf("%s layer in %s: %w", what, dir, err)
	}
	return nil
}

// carryOut carries out the request, in the process.
func (r request) carryOut(ctx context.Context, layer io.Reader) (answer, error) {
	switch r.Work {
	case "":
		return r.apply(ctx, layer)
	case checking:
		return answer{}, durable.CheckIndex(r.Target.Dir, r.Target.Index, true)
	case syncingAll:
		return answer{}, unix.Syncfs(passedFile)
	case indexing:
		if _, err := os.Stat(r.Target.Index); errors.Is(err, os.ErrNotExist) {
			return answer{}, durable.WriteIndex(r.Target.Dir, r.Target.Index)
		}
		return answer{}, nil
	case syncing:
		return answer{}, durable.SyncLayer(r.Target.Dir, r.Target.Index)
	default:
		return answer{}, fmt.Errorf("asked to %q a layer: %w", r.Work, errors.ErrUnsupported)
	}
}

const (
	ioprioWhoProcess = 1
	ioprioLast       = 2<<13 | 7 // IOPRIO_CLASS_BE, the lowest level
	ioprioIdle       = 3 << 13   // IOPRIO_CLASS_IDLE

	// niceLast lets berth and the shims, which are in the same control group as this process, have
	// the processors whenever they need them: an end that is to be settled does not wait for a
	// layer.
	niceLast = 10
	niceIdle = 19
)

// yield lowers the priority of this process for the processors and for the disk: it comes after
// berth, or, if it is idle, after everybody else. It is a wish: where the kernel does not grant it,
// the process goes on.
func yield(idle bool) {
	nice, io := niceLast, uintptr(ioprioLast)
	if idle {
		nice, io = niceIdle, ioprioIdle
	}
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		nice = max(nice, 20-own) // as the system call returns it
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads { // each thread has a priority of its own; those that come inherit it
		var tid int
		if _, err := fmt.Sscan(t.Name(), &tid); err != nil {
			continue
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice)
		_ = processors.Yield(tid)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), io)
	}
}
