// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/retry"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
	"berth/internal/host/spec"
)

// processes asks the kernel about the processes of units: pidfds and control groups. Nothing here
// needs containerd or a shim.
type processes struct {
	kernel  Kernel
	cgroups Cgroups
	ooms    *oomReader
	obs     Observer
	host    spec.Host
}

// observedProcess is the kernel's answer about the process of a unit.
type observedProcess string

const (
	processAlive observedProcess = "alive" // the recorded process lives
	processGone  observedProcess = "gone"  // it does not
	// it is of this host, and the kernel could not be asked
	processUnreachable observedProcess = "unreachable"
	processUnknown     observedProcess = "unknown" // none is recorded, or it is not of this host
)

// watch starts to watch the process that was made for u, before it is started, and finds its
// cgroup. Missing fields of the returned process are unknown.
func (p *processes) watch(u *unit, pid uint32) (state.Process, error) {
	proc := state.Process{}
	proc.Pid = pid
	if !u.handler.HostProcess {
		return proc, nil
	}
	var err error
	if proc.Process, err = p.follow(u, proc.Process); err != nil {
		return proc, err
	}
	if proc.Cgroup, err = p.cgroups.Of(pid); err != nil {
		p.obs.Note(u.id, event.CgroupUnread{Err: err.Error()})
		proc.Cgroup = askedGroup(p.cgroups, u)
	}
	if a, _ := p.kernel.Look(u.id); a != pidfd.Alive {
		// the value read may be about a process that got the PID meanwhile
		proc.Cgroup = askedGroup(p.cgroups, u)
	}
	p.ooms.notePod(u, &proc)
	return proc, nil
}

// delegate gives the control group of a container that has it writable to the user of its process,
// as that user is on the host. It is called before the process runs the program.
func (p *processes) delegate(u *unit, group string) error {
	if u.container == nil || group == "" || !spec.OwnsGroup(p.host, spec.Container{
		Config:      u.container.Config,
		Sandbox:     u.pod.sandbox.Config,
		HostProcess: u.handler.HostProcess,
		Defaults:    u.handler.Defaults,
	}) {
		return nil
	}
	uid := u.now().Applied.GetUID()
	if ids, ok := spec.UserNamespace(u.pod.sandbox.Config); ok {
		uid += int64(ids.UID)
	}
	return p.cgroups.Delegate(group, int(uid))
}

// follow makes the kernel watch the process of u, unless u was removed: a caller that found u
// before its removal may come here after it, and a process that is never reaped would be watched
// for ever. A removal marks the unit as erased before it ends the watch, and follow watches before
// it looks at the mark, so that one of the two ends the watch.
func (p *processes) follow(u *unit, proc pidfd.Process) (pidfd.Process, error) {
	got, err := p.kernel.Watch(u.id, proc)
	if u.erased.Load() {
		p.kernel.Forget(u.id)
		return got, fmt.Errorf("watch the process of %s, which is removed: %w", u.id, pidfd.ErrGone)
	}
	return got, err
}

// record persists the identity of the process that is about to run, because it would be lost if
// berth and the shim both died.
func (p *processes) record(u *unit, proc state.Process) error {
	u.setProcess(proc) // the witnesses may need it before it is on disk
	u.told.forget()    // an earlier one, which was taken back
	u.oom.begin(u.clock.Now())
	_ = p.ooms.arm(u) // nothing was counted before
	return u.change(func(st *state.Status) bool { st.Process, st.Start = proc, state.Start{}; return true })
}

// execPatience bounds the wait for a program to run once its container was started. Runc reports
// the start as soon as it has released the process, which then runs the startContainer hooks of the
// specification and executes the program.
const execPatience = 100 * time.Millisecond

// answerPatience bounds the same wait after a start without an answer, because the shim may be in
// the midst of it.
const answerPatience = time.Second

// program returns the program that the process of u executes; zero if it is not known.
func (p *processes) program(u *unit, pid uint32) pidfd.Program {
	if !u.handler.HostProcess || pid == 0 {
		return pidfd.Program{}
	}
	made, err := p.kernel.Program(pid)
	if err != nil {
		return pidfd.Program{} // then there is no wait for another one
	}
	return made
}

// waitExec waits until the process of u executes another program than the one that it was made
// with, or has ended, for the given time at most. It reports whether it executes another one.
func (p *processes) waitExec(ctx context.Context, u *unit, pid uint32, made pidfd.Program, most time.Duration) bool {
	if made == (pidfd.Program{}) {
		return false
	}
	began := time.Now()
	for range retry.Doubling(ctx.Done(), 50*time.Microsecond, 2*time.Millisecond) {
		if p.ended(u) {
			return false
		}
		if now := p.program(u, pid); now != made && now != (pidfd.Program{}) {
			return true
		}
		if time.Since(began) >= most {
			p.obs.Note(u.id, event.ExecPending{Still: made.Command})
			return false
		}
	}
	return false
}

// observe asks the kernel about the process of u, and watches it again if nothing does.
func (p *processes) observe(u *unit) observedProcess {
	if a, watched := p.kernel.Look(u.id); watched {
		return observedAs(a)
	}
	proc := u.process()
	if !u.handler.HostProcess || proc.Pid == 0 {
		return processUnknown
	}
	_, err := p.follow(u, proc.Process)
	switch {
	case errdefs.IsNotFound(err):
		return processGone
	case err != nil:
		p.obs.Note(u.id, event.ProcessUnanswered{Err: err.Error()})
		return processUnreachable
	}
	a, _ := p.kernel.Look(u.id) // it may have ended; a pidfd that was kept may yet have the code
	return observedAs(a)
}

func observedAs(a pidfd.Answer) observedProcess {
	switch a {
	case pidfd.Alive:
		return processAlive
	case pidfd.Gone:
		return processGone
	default:
		return processUnreachable
	}
}

// ended reports whether the kernel watches the process of u and has seen its end.
func (p *processes) ended(u *unit) bool {
	a, watched := p.kernel.Look(u.id)
	return watched && a == pidfd.Gone
}

// exact reports whether the kernel alone supplies the end and the exit code of u: it watches the
// process.
func (p *processes) exact(u *unit) bool {
	if !u.handler.HostProcess || !p.kernel.Exact() {
		return false
	}
	_, watched := p.kernel.Look(u.id)
	return watched
}

// forget stops watching the process of u.
func (p *processes) forget(u *unit) {
	u.told.forget()
	p.kernel.Forget(u.id)
	p.cgroups.ForgetOOM(u.id)
}

// errNoProcess is returned if neither the kernel nor containerd has a process to signal.
var errNoProcess = errors.New("there is no process")

// signal reaches the process of u by its pidfd, which needs neither the shim nor containerd, and
// through containerd where the kernel does not watch it. ErrNotFound: it ended. [errNoProcess]: and
// no witness will report that. If containerd knows of no process, and the kernel cannot be asked,
// the signal has failed: the process may live.
func (p *processes) signal(ctx context.Context, u *unit, sig unix.Signal) error {
	if sig == unix.SIGKILL {
		return p.kill(u, func() error { return p.send(ctx, u, sig) })
	}
	return p.send(ctx, u, sig)
}

func (p *processes) send(ctx context.Context, u *unit, sig unix.Signal) error {
	err := p.kernel.Signal(u.id, sig)
	if err == nil || !errdefs.IsNotFound(err) {
		return err
	}
	if _, watched := p.kernel.Look(u.id); watched {
		return err // it ended
	}
	err = u.workload.Kill(ctx, sig)
	if !errdefs.IsNotFound(err) {
		return err
	}
	switch p.observe(u) { // it can live without its shim
	case processAlive:
		return p.kernel.Signal(u.id, sig)
	case processUnreachable:
		return unreachable(u)
	default:
		return fmt.Errorf("%w: %w", errNoProcess, err)
	}
}

// unreachable returns the error of a signal that had to reach the process of u, and of a question
// whether it lives, where the kernel cannot be asked.
func unreachable(u *unit) error {
	return fmt.Errorf("the kernel cannot tell whether process %d of %s lives", u.process().Pid, u.id)
}

// end kills the process of u, if any, without waiting for its end. It returns an error if the
// kernel cannot tell whether there is one.
func (p *processes) end(ctx context.Context, u *unit) error {
	var err error
	switch p.observe(u) {
	case processAlive:
		err = p.kill(u, func() error { return p.kernel.Signal(u.id, unix.SIGKILL) })
	case processUnreachable:
		return unreachable(u)
	case processUnknown:
		err = p.kill(u, func() error { return u.workload.Kill(ctx, unix.SIGKILL) })
	case processGone:
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// waitGone waits, within a bound, until the kernel reports the end of the process of u, if it
// watches the process.
func (p *processes) waitGone(ctx context.Context, u *unit) error {
	gone := func() bool {
		a, watched := p.kernel.Look(u.id)
		return !watched || a == pidfd.Gone
	}
	if gone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	return heldError(u, p.insisting(ctx, u, func(ctx context.Context) error {
		for !gone() {
			if !retry.Sleep(ctx.Done(), 10*time.Millisecond) { // rare: its shim is dead, and it was killed just now
				return fmt.Errorf("its process %d lives on: %w", u.process().Pid, ctxError(ctx))
			}
		}
		return nil
	}))
}

// endLeftovers kills processes that outlived the init process of u. In a PID namespace of its own
// the kernel did that already; in a shared one the rest of the cgroup lives on.
func (p *processes) endLeftovers(ctx context.Context, u *unit) {
	dir := u.process().Cgroup
	if !u.sharesPIDs() || dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverTimeout)
	defer cancel()
	if err := p.cgroups.KillAll(ctx, dir); err != nil {
		p.obs.Note(u.id, event.LeftoversRemain{Err: err.Error()})
	}
}

// endRestored ends the remaining processes of a restore of u, if one was begun and no process is on
// record. found is true if there was one.
func (p *processes) endRestored(ctx context.Context, u *unit) (found bool, err error) {
	group := u.now().Restoring
	if group == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	if found, err = p.cgroups.RemoveAll(ctx, group); err != nil {
		return found, fmt.Errorf("end the remains of the restore of %s: %w", u.id, err)
	}
	return found, nil
}
