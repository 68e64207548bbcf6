// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/host/pidfd"
)

// kernel is the kernel witness of one life. It keeps the contract of pod.Kernel with the world's
// processes.
type kernel struct {
	w *World
	l *Life
}

func (k kernel) fact(p *Process) exit.Fact {
	f := exit.Fact{
		ID:     p.ID,
		Pid:    p.pid,
		At:     k.l.at(p.At),
		Origin: exit.Kernel,
	}
	if p.notified.life != k.l {
		f.At = clock.Instant{} // it had ended before it was watched, at an unknown time
	}
	if k.w.Exact && !p.Blind {
		f.Code, f.Measured = p.Code, true
		if p.FirstThread != nil {
			f.Code, f.FirstThread = *p.FirstThread, true
		}
	}
	return f
}

// Program implements pod.Kernel. It is not a step: nothing follows from it but a short wait.
func (k kernel) Program(pid uint32) (pidfd.Program, error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	p := k.w.procs[pid]
	switch {
	case k.l.Dead():
		return pidfd.Program{}, ErrKilled
	case p == nil || p.Ended:
		return pidfd.Program{}, pidfd.ErrGone
	case !p.Started || time.Since(p.startedAt) < k.w.ExecDelay:
		return pidfd.Program{Command: "runc:[2:INIT]"}, nil
	}
	return pidfd.Program{Command: "app"}, nil
}

// Pipe implements pod.Kernel. The output of a container has no pipes here.
func (kernel) Pipe(pidfd.Process, uint64) (int, error) { return -1, pidfd.ErrGone }

// Watch implements pod.Kernel.
func (k kernel) Watch(id string, p pidfd.Process) (pidfd.Process, error) {
	err := k.w.do(context.Background(), k.l, "watch", id, func() error {
		if old := k.l.watched[id]; old != nil && k.w.is(old, p) {
			p = k.w.identity(old)
			return nil
		}
		proc := k.open(id, p)
		if proc == nil {
			return fmt.Errorf("watch %s: %w", Short(id), errdefs.ErrNotFound)
		}
		k.l.watched[id] = proc
		if k.w.Keeper {
			k.w.kept[id] = proc
		}
		p = k.w.identity(proc)
		if proc.Ended {
			proc.kept.life, proc.kept.at = k.l, time.Now()
			go k.w.notify(k.l, proc)
		}
		return nil
	})
	return p, err
}

// bootID is the kernel's ID of this boot. The world must be locked.
func (w *World) bootID() string { return fmt.Sprint("boot", w.boots) }

// open finds the process of an identity: by the pidfd that an earlier life left for id, if that one
// is its, or by its pid. The world must be locked.
func (k kernel) open(id string, p pidfd.Process) *Process {
	left := k.l.inherited[id]
	delete(k.l.inherited, id)
	if left != nil && !left.reaped && (p.Pid == 0 || p.Pid == left.pid) {
		return left
	}
	proc := k.w.procs[p.Pid]
	if proc != nil && !proc.reaped && k.w.is(proc, p) {
		return proc
	}
	if left != nil && left.reaped {
		return left
	}
	return nil
}

// is reports whether p is the process of an identity. The world must be locked.
func (w *World) is(p *Process, i pidfd.Process) bool {
	return p.pid == i.Pid && (i.StartTicks == 0 || i.StartTicks == p.ticks) && (i.BootID == "" || i.BootID == w.bootID())
}

// identity is the identity of p. The world must be locked.
func (w *World) identity(p *Process) pidfd.Process {
	return pidfd.Process{Pid: p.pid, StartTicks: p.ticks, BootID: w.bootID()}
}

// ForgetUnclaimed drops the pidfds of an earlier life that were not claimed.
func (l *Life) ForgetUnclaimed() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.Dead() {
		return
	}
	for id := range l.inherited {
		delete(l.inherited, id)
		delete(l.w.kept, id)
	}
}

// notify tells the berth of l that a process that it watches has ended.
func (w *World) notify(l *Life, p *Process) {
	w.turns.take("kernel " + p.ID)
	w.mu.Lock()
	f, dead := kernel{w, l}.fact(p), l.Dead()
	w.mu.Unlock()
	if !dead {
		l.exited(f)
	}
}

// Forget implements pod.Kernel.
func (k kernel) Forget(id string) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.l.Dead() {
		return
	}
	delete(k.l.watched, id)
	delete(k.l.inherited, id)
	delete(k.w.kept, id)
}

// Watched reports whether the process of an ID is watched, or its pidfd is kept.
func (w *World) Watched(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[id] != nil || w.life != nil && w.life.watched[id] != nil
}

// Signal implements pod.Kernel.
func (k kernel) Signal(id string, sig unix.Signal) error {
	// Two stops may want to pass at once, one with its stop signal, the other with SIGKILL. Turns of
	// one name are given in the order in which they are asked for, which Go's scheduler decides.
	k.w.turns.take(fmt.Sprintf("signal %d %s", sig, id))
	return k.w.pass(context.Background(), k.l, "signal", id, func() error {
		return k.w.signal(k.l.watched[id], uint32(sig))
	})
}

// Look implements pod.Kernel.
func (k kernel) Look(id string) (a pidfd.Answer, watched bool) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	switch p := k.l.watched[id]; {
	case p == nil:
		return pidfd.CannotTell, false
	case k.w.match("look", id) != nil:
		return pidfd.CannotTell, true
	case p.Ended:
		return pidfd.Gone, true
	default:
		return pidfd.Alive, true
	}
}

// Exact implements pod.Kernel.
func (k kernel) Exact() bool { return k.w.Exact }

// cgroups are the cgroups of the world's processes. A cgroup is removed with its task.
type cgroups struct {
	w *World
	l *Life
}

func (c cgroups) Of(pid uint32) (dir string, err error) {
	err = c.w.read(context.Background(), c.l, "cgroup", "", func() error {
		p := c.w.procs[pid]
		if p == nil || p.reaped {
			return errdefs.ErrNotFound
		}
		dir = p.cgroup
		return nil
	})
	return dir, err
}

func (c cgroups) OOMKills(dir string) (n uint64, err error) {
	err = c.w.read(context.Background(), c.l, "oom", dir, func() error {
		t := c.w.ctrd.tasks[strings.TrimPrefix(dir, CgroupOf(""))]
		if t == nil {
			return errdefs.ErrNotFound
		}
		n = t.proc.OOM
		return nil
	})
	return n, err
}

// OOMKillsBelow counts for the groups of all processes, as if they belonged to one pod.
func (c cgroups) OOMKillsBelow(dir string) (n uint64, err error) {
	err = c.w.read(context.Background(), c.l, "oom-below", dir, func() error {
		for _, p := range c.w.procs {
			n += p.OOM
		}
		return nil
	})
	return n, err
}

func (c cgroups) LimitHits(dir string) (hits []uint64, err error) {
	err = c.w.read(context.Background(), c.l, "limit-hits", dir, func() error {
		t := c.w.ctrd.tasks[strings.TrimPrefix(dir, CgroupOf(""))]
		if t == nil {
			return errdefs.ErrNotFound
		}
		hits = slices.Clone(t.proc.hits[:])
		return nil
	})
	return hits, err
}

// WatchOOM implements pod.Cgroups: the kernel notifies of each kill.
func (c cgroups) WatchOOM(id, dir string) (all bool, err error) {
	err = c.w.read(context.Background(), c.l, "watch-oom", dir, func() error {
		if c.w.ctrd.tasks[strings.TrimPrefix(dir, CgroupOf(""))] == nil {
			return errdefs.ErrNotFound
		}
		c.l.oomWatched[id] = true
		return nil
	})
	return err == nil, err
}

// Unnoticed implements pod.Cgroups: the kernel notifies of all kills.
func (c cgroups) Unnoticed(string) bool { return false }

func (c cgroups) ForgetOOM(id string) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	delete(c.l.oomWatched, id)
}

func (c cgroups) KillAll(ctx context.Context, dir string) error {
	return c.w.do(ctx, c.l, "kill-all", dir, func() error { return nil })
}

// ThawAll implements pod.Cgroups: nothing is frozen.
func (c cgroups) Delegate(string, int) error              { return nil }
func (c cgroups) ThawAll(string) (thawed bool, err error) { return false, nil }

// Force implements pod.Cgroups.
func (c cgroups) Force(dir string, id pidfd.Process) (held string, err error) {
	err = c.w.do(context.Background(), c.l, "force", dir, func() error {
		p := c.w.procs[id.Pid]
		if p == nil || p.Ended {
			return nil
		}
		held = "process 1 traces it"
		if p.held > 0 {
			p.held--
		}
		return c.w.signal(p, 9)
	})
	return held, err
}

// RemoveAll ends the process in the group that the OCI specification of a container names, which
// ends with its ID.
func (c cgroups) RemoveAll(ctx context.Context, path string) (found bool, err error) {
	err = c.w.do(ctx, c.l, "end-group", path, func() error {
		for _, p := range c.w.procs {
			if !p.Ended && strings.HasSuffix(path, p.ID) {
				found = true
				_ = c.w.signal(p, 9)
			}
		}
		return nil
	})
	return found, err
}

// Dir implements pod.Cgroups. A path ends with the ID, or with a scope that is named by it.
func (c cgroups) Dir(path string) string {
	id := strings.TrimSuffix(path[strings.LastIndex(path, "/")+1:], ".scope")
	return CgroupOf(id[strings.LastIndex(id, "-")+1:])
}

// CgroupOf is the cgroup of the process of an ID.
func CgroupOf(id string) string { return "/cg/" + id }
