// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
)

// Watcher watches processes through pidfds (pidfd_open(2)), all of them in one epoll loop. Its
// methods may be called from any goroutine.
type Watcher struct {
	keep Keeper // nil if copies of pidfds are not kept elsewhere
	ep   int    // the epoll set
	wake int    // an eventfd in the set; writing to it ends the loop

	exact   bool // see Exact
	zombies bool // /proc/PID/stat shows the wait status of a zombie

	mu struct {
		sync.Mutex
		byID      map[string]*watch
		bySlot    map[int32]*watch
		inherited map[string]*legacy // by ID
		nextSlot  int32
		closed    bool
	}
}

// legacy is the pidfd that an earlier berth left for an ID, and that Watch has not claimed.
type legacy struct {
	fd int
	// asked: Watch was asked for the ID, and the kernel could not be asked whose the pidfd is.
	asked bool
}

// watch is one process that is watched. dropLocked closes its descriptor, exactly once.
type watch struct {
	id string
	fd int
	// the identifier that epoll reports. Unlike the number of a descriptor, a slot is never reused
	slot int32
	proc Process

	endedBefore bool // it had ended when Watch was called, so the time of its end is unknown
	ended       bool // the descriptor was seen readable
	reported    bool // nothing more can be learned: the last fact was emitted
	seenAt      clock.Instant
}

// Keeper keeps copies of pidfds beyond the end of this process: see package fdstore. Its methods
// must not block.
type Keeper interface {
	// Keep keeps a copy of fd under id. fd stays the caller's. A descriptor kept under id from
	// before was dropped.
	Keep(id string, fd int)
	// Drop removes the descriptor kept under id, if any.
	Drop(id string)
}

// New makes a watcher. keep may be nil. inherited are the pidfds, by ID, that an earlier berth left
// with its Keeper; the watcher closes them. The caller must call Run, which closes everything at
// its end.
func New(keep Keeper, inherited map[string]int) (*Watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: make an epoll set: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("watch processes: make an eventfd: %w", err)
	}
	in := unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeSlot}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &in); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(wake)
		return nil, fmt.Errorf("watch processes: add an eventfd to the epoll set: %w", err)
	}
	w := &Watcher{keep: keep, ep: ep, wake: wake}
	w.mu.byID = map[string]*watch{}
	w.mu.bySlot = map[int32]*watch{}
	w.mu.inherited = map[string]*legacy{}
	for id, fd := range inherited {
		w.mu.inherited[id] = &legacy{fd: fd}
	}
	w.exact, w.zombies = kernelAtLeast(6, 15), mayTrace()
	_, _ = BootID() // while there are descriptors; else it is read when it is needed
	return w, nil
}

// Exact reports whether this kernel has the exit status of a process that another process reaped
// (PIDFD_INFO_EXIT, Linux 6.15).
func (w *Watcher) Exact() bool { return w.exact }

// Watch starts watching p as the init process of id and returns p's full identity. Call it after
// the process was made and, so that no exit goes unseen, before it is started.
//
// p.StartTicks may be 0, for a process that the runtime made just now; it must be set for one that
// is known from a record. Watch returns [ErrGone] if the process does not exist any more, unless an
// earlier berth left a pidfd of it: then the sink gets the fact that this pidfd still has. Watching
// the same process under the same ID again does nothing; another process takes the place of the
// first.
//
// The caller may read more about the process by its pid, such as its cgroup. If [Watcher.Look]
// returns alive afterwards, the values read are about this process, and not about a later one that
// was given the same pid.
func (w *Watcher) Watch(id string, p Process) (Process, error) {
	w.mu.Lock()
	if old, ok := w.mu.byID[id]; ok && old.proc.same(p) {
		w.mu.Unlock()
		return old.proc, nil
	}
	if left, ok := w.mu.inherited[id]; ok {
		defer w.mu.Unlock() // the process must not be looked up while its pidfd is in two hands
		return w.claimLocked(id, left, p)
	}
	w.mu.Unlock()
	fd, identity, err := OpenProcess(p)
	if err != nil {
		return p, fmt.Errorf("watch process %d of %s: %w", p.Pid, id, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.addLocked(id, fd, identity, false); err != nil {
		_ = unix.Close(fd)
		return p, err
	}
	return w.watchedLocked(id, fd), nil
}

// claimLocked is Watch for an ID for which an earlier berth left a pidfd.
func (w *Watcher) claimLocked(id string, left *legacy, p Process) (Process, error) {
	fd, identity, kept, err := claim(left.fd, p)
	if !kept { // claim has closed it: it was another process's
		delete(w.mu.inherited, id)
		if w.keep != nil {
			w.keep.Drop(id)
		}
	}
	if err != nil {
		left.asked = true
		return p, fmt.Errorf("watch process %d of %s: %w", p.Pid, id, err)
	}
	if err := w.addLocked(id, fd, identity, kept); err != nil {
		left.asked = true
		if !kept {
			_ = unix.Close(fd)
		}
		return p, err
	}
	delete(w.mu.inherited, id)
	return w.watchedLocked(id, fd), nil
}

// watchedLocked returns the identity of the process that is watched as id. fd was opened for it,
// and is not needed if another call has watched the same process meanwhile.
func (w *Watcher) watchedLocked(id string, fd int) Process {
	wt := w.mu.byID[id]
	if wt.fd != fd {
		_ = unix.Close(fd)
	}
	return wt.proc
}

// addLocked puts an open pidfd into the epoll set, unless the same process is watched already. fd
// stays the caller's in that case, and after an error. kept is set if the Keeper has a copy.
func (w *Watcher) addLocked(id string, fd int, p Process, kept bool) error {
	if w.mu.closed {
		return fmt.Errorf("watch process %d of %s: %w: berth is stopping", p.Pid, id, errdefs.ErrUnavailable)
	}
	old, replaces := w.mu.byID[id]
	if replaces && old.proc.same(p) { // by another call at the same time
		return nil
	}
	w.mu.nextSlot++
	wt := &watch{
		id:          id,
		fd:          fd,
		slot:        w.mu.nextSlot,
		proc:        p,
		endedBefore: Ask(fd) == Gone,
	}
	in := unix.EpollEvent{Events: unix.EPOLLIN, Fd: wt.slot}
	if err := unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, fd, &in); err != nil {
		return fmt.Errorf("watch process %d of %s: add its pidfd to the epoll set: %w", p.Pid, id, err)
	}
	if replaces {
		w.dropLocked(old)
	}
	if w.keep != nil && !kept {
		if replaces {
			w.keep.Drop(id)
		}
		w.keep.Keep(id, fd)
	}
	w.mu.byID[id], w.mu.bySlot[wt.slot] = wt, wt
	return nil
}

// Forget stops watching id, and drops its kept or inherited descriptor. It does nothing for an ID
// that is not watched.
func (w *Watcher) Forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropInheritedLocked(id)
	if wt, ok := w.mu.byID[id]; ok {
		w.dropLocked(wt)
	}
	if w.keep != nil {
		w.keep.Drop(id)
	}
}

// ForgetUnclaimed closes, and drops from the Keeper, the inherited pidfds for which no call of
// Watch has asked. Call it once everything that runs is watched again. One whose process could not
// be asked for stays: it may have the exit code.
func (w *Watcher) ForgetUnclaimed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, left := range w.mu.inherited {
		if left.asked {
			continue
		}
		w.dropInheritedLocked(id)
		if w.keep != nil {
			w.keep.Drop(id)
		}
	}
}

func (w *Watcher) dropInheritedLocked(id string) {
	if left, ok := w.mu.inherited[id]; ok {
		delete(w.mu.inherited, id)
		_ = unix.Close(left.fd)
	}
}

// dropLocked takes the descriptor out of the epoll set before it closes it. Closing alone is not
// enough: while the Keeper has a copy, the file stays open and in the set, and would wake the loop
// without end once the process ended (epoll(7), question 6).
func (w *Watcher) dropLocked(wt *watch) {
	delete(w.mu.byID, wt.id)
	delete(w.mu.bySlot, wt.slot)
	if !wt.reported { // else it was taken out when its last fact was emitted
		_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, wt.fd, nil)
	}
	_ = unix.Close(wt.fd)
}

// Signal sends sig to the process of id through its pidfd, so that it cannot reach another process.
// It returns errdefs.ErrNotFound when id is not watched, and [ErrGone] when its process was reaped.
func (w *Watcher) Signal(id string, sig unix.Signal) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wt, ok := w.mu.byID[id]
	if !ok {
		return fmt.Errorf("signal %s: its process is not watched: %w", id, errdefs.ErrNotFound)
	}
	if err := Send(wt.fd, sig); err != nil {
		return fmt.Errorf("signal %s with %s: %w", id, unix.SignalName(sig), err)
	}
	return nil
}

// Program returns the program that process pid executes, or [ErrGone] if nothing has the pid.
func (w *Watcher) Program(pid uint32) (Program, error) {
	st, err := ReadStat(pid)
	return st.Program, err
}

// Pipe opens the read end of a pipe: see [OpenPipe].
func (*Watcher) Pipe(p Process, inode uint64) (fd int, err error) { return OpenPipe(p, inode) }

// Look asks the kernel now whether the process of id has ended. watched is false when id is not
// watched, in which case nothing is known.
func (w *Watcher) Look(id string) (a Answer, watched bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wt, ok := w.mu.byID[id]
	if !ok {
		return CannotTell, false
	}
	return Ask(wt.fd), true
}
