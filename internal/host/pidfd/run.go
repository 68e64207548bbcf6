// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// wakeSlot identifies the eventfd that ends the loop. Slots of processes are above 0.
const wakeSlot = -1

// Run reports exits until ctx ends, and returns nil then. It calls sink for each fact, from its own
// goroutine, and sink must not block. now returns the instant of now. Any other error keeps it from
// waiting, and is final. All descriptors are closed when it returns.
func (w *Watcher) Run(ctx context.Context, now func() clock.Instant, sink func(exit.Fact)) error {
	woke := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woke)
		_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // any number but 0
	})
	defer func() {
		if !stop() {
			<-woke
		}
		w.close()
	}()
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(w.ep, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch processes: wait for an exit: %w", err)
		}
		at := now()
		for _, ev := range events[:n] {
			if ev.Fd == wakeSlot {
				return nil
			}
			if f, ok := w.observe(ev, at); ok {
				sink(f)
			}
		}
	}
}

func (w *Watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.closed = true
	for _, wt := range w.mu.byID {
		w.dropLocked(wt)
	}
	for id := range w.mu.inherited {
		w.dropInheritedLocked(id)
	}
	_ = unix.Close(w.ep)
	_ = unix.Close(w.wake)
}

// observe turns one epoll event into the fact that can be stated now, if it states anything new.
//
// A pidfd is readable once the last thread of its process ended, and hung up once the process was
// reaped (Linux 6.9). Between the two the process is a zombie, and /proc has its wait status. After
// it was reaped, Linux 6.15 and later give the status of its first thread for PIDFD_GET_INFO.
// Earlier kernels have nothing, and the fact is not measured.
func (w *Watcher) observe(ev unix.EpollEvent, at clock.Instant) (exit.Fact, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wt, ok := w.mu.bySlot[ev.Fd]
	if !ok || wt.reported {
		return exit.Fact{}, false // it was dropped after epoll reported it
	}
	first := !wt.ended
	if first {
		wt.ended = true
		if !wt.endedBefore {
			wt.seenAt = at
		}
	}
	reaped := ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
	fact := exit.Fact{
		ID:     wt.id,
		Pid:    wt.proc.Pid,
		At:     wt.seenAt,
		Origin: exit.Kernel,
	}
	w.measure(&fact, wt, reaped)
	if fact.Measured || reaped {
		// Epoll is level-triggered: a descriptor that stays in the set would wake the loop without end.
		wt.reported = true
		_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, wt.fd, nil)
		return fact, true
	}
	// It is a zombie whose status /proc did not show. Wait for it to be reaped: epoll reports a
	// hang-up even if no event was asked for.
	_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_MOD, wt.fd, &unix.EpollEvent{Events: 0, Fd: wt.slot})
	return fact, first
}

// measure completes the fact about a process that ended with its code, as far as the kernel still
// has one.
//
// The status of a zombie is that of the whole process, the one its parent gets. It is read with the
// lock that a reaper takes: the kernel counts no thread if it came too late for that, and shows the
// status of the first thread, as for a pidfd.
func (w *Watcher) measure(f *exit.Fact, wt *watch, reaped bool) {
	if !reaped && w.zombies {
		st, err := ReadStat(wt.proc.Pid)
		if err == nil && st.State == 'Z' && st.Threads > 0 && st.StartTicks == wt.proc.StartTicks {
			f.Code, f.Measured = exitCode(unix.WaitStatus(st.ExitStatus)), true
			return
		}
	}
	// It was reaped, maybe just now.
	f.Code, f.Measured = Code(wt.fd)
	f.FirstThread = f.Measured
}

// exitCode returns a wait status as containers report it: 128+N for signal N.
func exitCode(s unix.WaitStatus) uint32 {
	if s.Signaled() {
		return 128 + uint32(s.Signal())
	}
	return uint32(s.ExitStatus())
}

// Code returns the exit code of the first thread of the process of a pidfd, 128+N for signal N. The
// package comment explains when that differs from the code of the process. It is not known while
// the process has not been reaped, nor before Linux 6.15.
func Code(fd int) (code uint32, known bool) {
	status, ok := pidfdExit(fd)
	if !ok {
		return 0, false
	}
	return exitCode(status), true
}

// pidfdExit asks the kernel for the wait status of the first thread of a process that was reaped
// (Linux 6.15).
func pidfdExit(fd int) (unix.WaitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(fd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return unix.WaitStatus(uint32(info.Exit_code)), true
}

// mayTrace reports whether this thread has CAP_SYS_PTRACE. Without it /proc shows every exit status
// as 0, which must not be taken for a success (proc_pid_stat(5), field 52).
func mayTrace() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// kernelAtLeast compares the running kernel's release. It is false for a release that cannot be
// read.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || a == major && b >= minor
}
