// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// LongSlice is for how long a thread asks to run at a time that [Yield] was called for.
const LongSlice = 20 * time.Millisecond

// Yield has a thread of this process, or of a child of it, ask to run for a long time at a time. It makes
// no difference to how much of the processors it gets: but whoever asks for less, as everybody does who
// does not ask, goes first as soon as it wakes up, and does not wait until what this thread has begun is
// over. tid is the thread's number, 0 for the one that calls. Linux before 6.12 makes no difference
// between them (Documentation/scheduler/sched-eevdf.rst, and sched_setattr(2)).
func Yield(tid int) error { return ask(tid, LongSlice) }

// Behind calls do in a way in which whatever else wakes up goes first: do is part of something that takes
// long, for which nobody waits.
func Behind(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if Yield(0) == nil {
		defer func() { _ = ask(0, 0) }()
	}
	do()
}

// ask sets how long a thread asks to run at a time; 0 is what threads have that do not ask.
func ask(tid int, slice time.Duration) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return fmt.Errorf("sched_getattr: %w", err)
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return nil // nothing of this has to do with it
	}
	attr.Runtime = uint64(slice) //nolint:gosec // a constant
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("sched_setattr: %w", err)
	}
	return nil
}
