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

	"berth/internal/durable"
)

// work is what a process does with a layer that is unpacked already. A layer decides how much memory
// that takes, as it does when it is unpacked.
type work string

const (
	checking   work = "check"                // compare it with its index
	syncing    work = "sync"                 // put it onto the disk, with its index
	syncingAll work = "sync the file system" // that the directory is in
)

// Check compares a layer with its index. It returns durable.ErrWrong with the first difference,
// durable.ErrNoIndex, or the error for which it cannot tell. With idle set, everybody else goes first.
func Check(ctx context.Context, dir, index string, idle bool) error {
	return with(ctx, checking, dir, index, idle)
}

// SyncAll puts everything in the file system of a directory onto the disk. It returns when ctx ends,
// though the kernel may not end the process before the disk has answered.
func SyncAll(ctx context.Context, dir string) error {
	done := make(chan error, 1)
	go func() { done <- with(ctx, syncingAll, dir, "", false) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Sync puts a layer onto the disk, and everybody else goes first. A layer without an index gets one.
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

// carryOut does what is asked for, in the process.
func (r request) carryOut(ctx context.Context, layer io.Reader) (answer, error) {
	switch r.Work {
	case "":
		return r.apply(ctx, layer)
	case checking:
		return answer{}, durable.CheckIndex(r.Target.Dir, r.Target.Index, true)
	case syncingAll:
		return answer{}, syncFileSystem(r.Target.Dir)
	case syncing:
		if _, err := os.Stat(r.Target.Index); errors.Is(err, os.ErrNotExist) {
			if err := durable.WriteIndex(r.Target.Dir, r.Target.Index); err != nil {
				return answer{}, err
			}
		}
		return answer{}, durable.SyncLayer(r.Target.Dir, r.Target.Index)
	default:
		return answer{}, fmt.Errorf("asked to %q a layer: %w", r.Work, errors.ErrUnsupported)
	}
}

const (
	ioprioWhoProcess = 1
	ioprioIdle       = 3 << 13 // IOPRIO_CLASS_IDLE
)

// yield gives this process the lowest priority for the processors and for the disk. It is a wish:
// where the kernel does not grant it, the process goes on.
func yield() {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads { // each thread has a priority of its own; those that come inherit it
		var tid int
		if _, err := fmt.Sscan(t.Name(), &tid); err != nil {
			continue
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioIdle)
	}
}
