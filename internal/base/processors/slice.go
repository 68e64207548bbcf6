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

// Yield has a thread of this process, or of a child of it, ask to run for a long time at a time. It
// does not change its share of the processors. But a thread in the same control group that asks for
// less, as every thread does by default, preempts it as soon as it wakes up and is due some time,
// instead of waiting for its slice to end. tid is the thread's ID, 0 for the calling thread. Linux
// before 6.12 makes no difference between them (Documentation/scheduler/sched-eevdf.rst, and
// sched_setattr(2)).
func Yield(tid int) error {
	_, err := ask(tid, LongSlice)
	return err
}

// Behind calls do such that berth's other threads go first when they wake up, as with Yield: do is
// part of long work that is not urgent.
func Behind(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if before, err := ask(0, LongSlice); err == nil {
		defer func() { _, _ = ask(0, before) }()
	}
	do()
}

// ask sets for how long a thread asks to run at a time, and returns for how long it did before.
func ask(tid int, slice time.Duration) (before time.Duration, err error) {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return 0, fmt.Errorf("sched_getattr: %w", err)
	}
	before = time.Duration(attr.Runtime)
	if attr.Policy != unix.SCHED_NORMAL {
		return before, nil // nothing of this has to do with it
	}
	attr.Runtime = uint64(slice)
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return before, fmt.Errorf("sched_setattr: %w", err)
	}
	return before, nil
}
