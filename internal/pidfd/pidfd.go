// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/exit"
)

// ErrGone is returned when the process to be watched does not exist any more (or its pid
// belongs to another by now): it ended, and this kernel no longer knows how.
var ErrGone = fmt.Errorf("the process is gone: %w", errdefs.ErrNotFound)

// Watcher watches processes by pidfd (pidfd_open(2)), all in one epoll loop.
type Watcher struct {
	sink func(exit.Fact) // must not block
	keep Keeper
	ep   int
	wake int // eventfd that ends the loop

	exact atomic.Bool // PIDFD_INFO_EXIT has been seen to work, or is expected to

	mu struct {
		sync.Mutex
		byID      map[string]*watch
		bySlot    map[int32]*watch
		inherited map[string]int // pidfds of an earlier berth, by ID, not yet claimed
		nextSlot  int32
		closed    bool
	}
}

// watch is one process. Its descriptor is closed exactly once, by drop.
type watch struct {
	id     string
	fd     int
	slot   int32 // what epoll reports; never reused, unlike a descriptor's number
	proc   Process
	late   bool // it had ended when it was first watched: nobody here knows when
	ended  bool // POLLIN was seen
	told   bool // a measured fact was emitted
	seenAt time.Time
}

// Keeper keeps pidfds beyond berth's own death (systemd's descriptor store). Its methods
// must not block.
type Keeper interface {
	Keep(id string, fd int)
	Drop(id string)
}

// New makes the witness. sink is called from Run's goroutine and from Watch, and must not block.
// keep may be nil; inherited holds pidfds that an earlier berth left with its Keeper.
// The caller runs Run.
func New(sink func(exit.Fact), keep Keeper, inherited map[string]int) (*Watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("watch processes: eventfd: %w", err)
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(wake)
		return nil, fmt.Errorf("watch processes: epoll: %w", err)
	}
	k := &Watcher{sink: sink, keep: keep, ep: ep, wake: wake}
	k.mu.byID = map[string]*watch{}
	k.mu.bySlot = map[int32]*watch{}
	k.mu.inherited = map[string]int{}
	for id, fd := range inherited {
		k.mu.inherited[id] = fd
	}
	k.exact.Store(kernelAtLeast(6, 15))
	return k, nil
}

// Exact reports whether this kernel gives the exit status of a process that somebody else
// reaped (PIDFD_INFO_EXIT, Linux 6.15).
func (k *Watcher) Exact() bool { return k.exact.Load() }

// Watch starts to watch the init process of id and returns its full identity. It must be
// called after the process was made and, for a complete account, before it is started.
// [ErrGone] when it does not exist any more. If an earlier berth left a pidfd for id, the
// fact is told from that even then. Watching an id twice is not an error.
func (k *Watcher) Watch(id string, p Process) (Process, error) {
	k.mu.Lock()
	if w, ok := k.mu.byID[id]; ok {
		k.mu.Unlock()
		return w.proc, nil
	}
	fd, inherited := k.mu.inherited[id]
	delete(k.mu.inherited, id)
	k.mu.Unlock()

	if !inherited {
		var err error
		if fd, p, err = openPidfd(p); err != nil {
			return p, fmt.Errorf("watch process %d of %s: %w", p.Pid, id, err)
		}
	}

	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok := k.mu.byID[id]; ok || k.mu.closed {
		_ = unix.Close(fd)
		if ok {
			return w.proc, nil
		}
		return p, fmt.Errorf("watch process %d of %s: %w: berth is stopping", p.Pid, id, errdefs.ErrUnavailable)
	}
	k.mu.nextSlot++
	w := &watch{id: id, fd: fd, slot: k.mu.nextSlot, proc: p, late: readable(fd)}
	if err := unix.EpollCtl(k.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: w.slot}); err != nil {
		_ = unix.Close(fd)
		return p, fmt.Errorf("watch process %d of %s: %w", p.Pid, id, err)
	}
	k.mu.byID[id], k.mu.bySlot[w.slot] = w, w
	if k.keep != nil && !inherited {
		k.keep.Keep(id, fd)
	}
	return p, nil
}

// openPidfd opens p's process and makes sure that it is p: the identity is read while the
// descriptor holds the pid, so that it cannot be another's.
func openPidfd(p Process) (int, Process, error) {
	if p.Pid == 0 {
		return -1, p, fmt.Errorf("no pid: %w", ErrGone)
	}
	if p.BootID != "" && p.BootID != BootID() {
		return -1, p, fmt.Errorf("it belongs to an earlier boot: %w", ErrGone)
	}
	fd, err := unix.PidfdOpen(int(p.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, p, ErrGone
	}
	if err != nil {
		return -1, p, fmt.Errorf("pidfd_open: %w", err)
	}
	unix.CloseOnExec(fd)
	st, err := readStat(p.Pid)
	if err != nil { // reaped since pidfd_open: the descriptor still speaks if we know whose it is
		if p.StartTicks == 0 {
			p.BootID = BootID()
			return fd, p, nil
		}
		_ = unix.Close(fd)
		return -1, p, ErrGone
	}
	if p.StartTicks != 0 && st.startTicks != p.StartTicks {
		_ = unix.Close(fd)
		return -1, p, fmt.Errorf("its pid belongs to another process now: %w", ErrGone)
	}
	p.StartTicks, p.BootID = st.startTicks, BootID()
	return fd, p, nil
}

// Forget stops to watch id. Unknown ids are fine.
func (k *Watcher) Forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd, ok := k.mu.inherited[id]; ok {
		delete(k.mu.inherited, id)
		_ = unix.Close(fd)
	}
	if w, ok := k.mu.byID[id]; ok {
		k.dropLocked(w)
	}
	if k.keep != nil {
		k.keep.Drop(id)
	}
}

// ForgetUnclaimed lets go of the pidfds of an earlier berth that nobody asked for since: call it once everything that runs
// is watched again.
func (k *Watcher) ForgetUnclaimed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, fd := range k.mu.inherited {
		delete(k.mu.inherited, id)
		_ = unix.Close(fd)
		if k.keep != nil {
			k.keep.Drop(id)
		}
	}
}

func (k *Watcher) dropLocked(w *watch) {
	delete(k.mu.byID, w.id)
	delete(k.mu.bySlot, w.slot)
	_ = unix.Close(w.fd) // leaves the epoll set with it: no other descriptor shares the file
}

// Signal sends sig to the process of id by its pidfd, which cannot hit another process.
// ErrNotFound when id is not watched, [ErrGone] when its process ended.
func (k *Watcher) Signal(id string, sig unix.Signal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, ok := k.mu.byID[id]
	if !ok {
		return fmt.Errorf("signal %s: not watched: %w", id, errdefs.ErrNotFound)
	}
	err := unix.PidfdSendSignal(w.fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %s: %w", id, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("signal %s with %s: %w", id, unix.SignalName(sig), err)
	}
	return nil
}

// Look asks the kernel now about the process of id. watched is false when the kernel cannot
// speak for id; alive says that its process has not ended.
func (k *Watcher) Look(id string) (alive, watched bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, ok := k.mu.byID[id]
	if !ok {
		return false, false
	}
	return !readable(w.fd), true
}

// readable reports whether the process of a pidfd has ended.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// Run reports exits until ctx ends. It returns nil then, or the error that keeps it from
// waiting. All descriptors are closed when it returns.
func (k *Watcher) Run(ctx context.Context) error {
	woke := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woke)
		_, _ = unix.Write(k.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a counter: any order of bytes will do
	})
	defer func() {
		if !stop() {
			<-woke
		}
		k.close()
	}()
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(k.ep, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch processes: %w", err)
		}
		at := time.Now()
		for _, ev := range events[:n] {
			if ev.Fd < 0 {
				return nil
			}
			if f, ok := k.woken(ev, at); ok {
				k.sink(f)
			}
		}
	}
}

func (k *Watcher) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.closed = true
	for _, w := range k.mu.byID {
		k.dropLocked(w)
	}
	for id, fd := range k.mu.inherited {
		delete(k.mu.inherited, id)
		_ = unix.Close(fd)
	}
	_ = unix.Close(k.ep)
	_ = unix.Close(k.wake)
}

// woken turns one epoll event into what can be said now.
//
// A pidfd is readable once the process (its last thread) ended, and hung up once it was
// reaped. Between the two it is a zombie, whose status /proc tells. After the reaping,
// Linux 6.15 tells it by PIDFD_GET_INFO. Older kernels forget: the fact is unmeasured then.
func (k *Watcher) woken(ev unix.EpollEvent, at time.Time) (exit.Fact, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, ok := k.mu.bySlot[ev.Fd]
	if !ok || w.told {
		return exit.Fact{}, false
	}
	first := !w.ended
	if first {
		w.ended, w.seenAt = true, at
		if w.late {
			w.seenAt = time.Time{}
		}
	}
	reaped := ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
	fact := exit.Fact{ID: w.id, At: w.seenAt, Origin: exit.Kernel}
	status, ok := waitStatus(w, reaped)
	if ok {
		fact.Code, fact.Measured = exitCode(status), true
	}
	if ok || reaped {
		// All is said. Level-triggered, the descriptor would go on waking us for ever.
		w.told = true
		_ = unix.EpollCtl(k.ep, unix.EPOLL_CTL_DEL, w.fd, nil)
		return fact, ok || first || !fact.Measured
	}
	// A zombie that /proc did not tell about: wait for the reaping (a hang-up is always reported).
	_ = unix.EpollCtl(k.ep, unix.EPOLL_CTL_MOD, w.fd, &unix.EpollEvent{Events: 0, Fd: w.slot})
	return fact, first
}

func waitStatus(w *watch, reaped bool) (unix.WaitStatus, bool) {
	if reaped {
		return pidfdExit(w.fd)
	}
	if st, err := readStat(w.proc.Pid); err == nil && st.state == 'Z' && st.startTicks == w.proc.StartTicks {
		return unix.WaitStatus(st.exitStatus), true
	}
	return pidfdExit(w.fd) // reaped since
}

// exitCode is the code as containers report it: 128+N for signal N.
func exitCode(s unix.WaitStatus) uint32 {
	if s.Signaled() {
		return 128 + uint32(s.Signal())
	}
	return uint32(s.ExitStatus())
}

// pidfdExit asks the kernel for the wait status of a reaped process (Linux 6.15).
func pidfdExit(fd int) (unix.WaitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(fd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return unix.WaitStatus(uint32(info.Exit_code)), true
}

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
