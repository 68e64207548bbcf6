// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Process is the init process of a container or a sandbox. The exported fields are the truth about
// it.
type Process struct {
	ID      string
	Started bool
	Ended   bool
	Code    uint32
	At      time.Time // of its end
	Stamp   time.Time // what the clock showed then
	OOM     uint64    // OOM kills in its cgroup
	OOMAt   time.Time // of the last one
	VM      bool      // its cgroup is not on this host
	Killed  bool      // by a SIGKILL from berth
	Asked   bool      // berth sent it any signal
	// Away: no berth ran when it ended.
	Away bool
	// Unanswered: containerd was asked about its task and could not answer.
	Unanswered bool
	// Uncounted: there were OOM kills in its cgroup, and the counter could not be read once.
	Uncounted bool
	// Lost: its shim died, or containerd dropped its task, so that only the kernel can know the code.
	Lost bool
	// Notified: the kernel notified a berth when it ended, and that berth lives, or had the time to
	// record it. It is only set in results of [World.Process], as Kept is.
	Notified bool
	// Kept: the same for a berth that found it ended, and had a pidfd of it.
	Kept bool
	// Blind: the kernel does not report its code, even if it reports others.
	Blind bool
	// FirstThread is the code of its first thread where the kernel tells a pidfd that one, because it
	// was reaped before its status was read; nil: it tells the code of the process.
	FirstThread *uint32
	// Updates are the changes of its cgroup settings, in their order.
	Updates []*specs.LinuxResources

	startedAt time.Time
	hits      [2]uint64 // of its memory limit, and its pod's
	pid       uint32
	ticks     uint64
	cgroup    string
	held      int    // how often all of its group has to be killed until it ends; -1: it never does
	reaped    bool   // its status can only be read with a pidfd any more
	notified  notice // when it ended
	kept      notice // later
	// notice and reap are how much later than in any other story the kernel notifies of its end, and
	// its shim learns of it; 0 for no delay.
	notice, reap time.Duration
	spec         typeurl.Any // that its task was made with
}

// notice is the kernel's report of an end to a berth.
type notice struct {
	life *Life
	at   time.Time
	// recorded: a berth lived long enough, with a disk that works, to record it.
	recorded bool
}

// counts reports whether a berth knows the end: the one of the last notice lives, or the end is on
// record.
func (n notice) counts() bool { return n.recorded || n.life != nil && !n.life.Dead() }

// Process returns the first process of an ID that was started, or else the last one; nil when there
// was none. A process that containerd makes beside one that was started, for a call that was given
// up, does not count.
func (w *World) Process(id string) *Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil {
		return nil
	}
	now := *p
	now.Updates = slices.Clone(p.Updates)
	now.Notified, now.Kept = p.notified.counts(), p.kept.counts()
	return &now
}

// spawn makes a process. The world must be locked.
func (w *World) spawn(id string) *Process {
	w.pid++
	p := &Process{ID: id, pid: w.pid, ticks: uint64(w.pid) * 10, cgroup: CgroupOf(id)}
	w.procs[p.pid] = p
	if old := w.inits[id]; old == nil || !old.Started {
		w.inits[id] = p
	}
	return p
}

// Exit ends the process of id; with oom, after the OOM killer has fired. It reports false when
// there is none that runs.
func (w *World) Exit(id string, code uint32, oom bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.Ended || !p.Started {
		return false
	}
	if oom {
		w.oom(p)
	}
	w.end(p, code)
	return true
}

// ExitApart ends the process of id with a code, and its first thread with another one, which the
// kernel reports to a pidfd. It returns false if there is no running one.
func (w *World) ExitApart(id string, code, first uint32) bool {
	return w.EndAs(id, End{Code: code, FirstThread: &first})
}

// OOM makes the OOM killer fire in the cgroup of id.
func (w *World) OOM(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.oom(w.inits[id])
}

func (w *World) oom(p *Process) {
	p.OOM++
	p.OOMAt = time.Now()
	p.hits[0]++
	w.notifyOOM(p.ID)
	if s := w.ctrd.shimOf(p.ID); s != nil && !s.dead {
		w.ctrd.send(w, "/tasks/oom", &eventtypes.TaskOOM{ContainerID: p.ID})
	}
}

// notifyOOM notifies, as the kernel does, the life of an OOM kill that it watches for. The world
// must be locked.
func (w *World) notifyOOM(id string) {
	l := w.life
	if l == nil || l.oomNoted == nil || !l.oomWatched[id] {
		return
	}
	go func() {
		w.turns.take("kernel oom " + id)
		if !l.Dead() {
			l.oomNoted([]string{id})
		}
	}()
}

// end makes p a zombie, notifies the life that watches it, and lets the shim reap it ShimDelay
// later. The world must be locked.
func (w *World) end(p *Process, code uint32) {
	p.Ended, p.Code, p.At, p.Stamp, p.Away = true, code, time.Now(), w.wall(), w.life == nil
	w.note(fmt.Sprintf("*** process ends with %d", code), p.ID)
	if l := w.life; l != nil && l.watched[p.ID] == p {
		if w.lostNotices > 0 {
			w.lostNotices--
		} else {
			p.notified = notice{life: l, at: p.At}
			if p.notice > 0 {
				time.AfterFunc(p.notice, func() { w.notify(l, p) })
			} else {
				go w.notify(l, p)
			}
		}
	}
	s := w.ctrd.shimOf(p.ID)
	if s == nil || s.dead {
		p.reaped = !w.Unreaped // by the host's init
		return
	}
	delay := cmp.Or(p.reap, w.ShimDelay) + s.heldUp()
	if delay == 0 && w.turns.free() {
		w.ctrd.reap(w, p)
		return
	}
	reap := func() {
		w.turns.take("shim " + p.ID)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ctrd.reap(w, p)
	}
	if delay == 0 {
		go reap()
		return
	}
	time.AfterFunc(delay, reap)
}

// signal delivers a signal from berth. The world must be locked.
func (w *World) signal(p *Process, sig uint32) error {
	if p == nil || p.Ended {
		return errdefs.ErrNotFound
	}
	p.Asked = true
	if sig == 9 {
		p.Killed = true
		if p.held == 0 {
			w.end(p, 137)
		}
	}
	return nil
}

// HoldEnd makes the process of an ID survive SIGKILL until everything that could keep it from its
// end was killed that often; -1: for ever. That is how one is that another process traces.
func (w *World) HoldEnd(id string, forced int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inits[id].held = forced
}

// Memory is the memory limit of a process that runs; 0 for none.
func (w *World) Memory(id string) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.Ended {
		return 0, fmt.Errorf("%s does not run", Short(id))
	}
	for _, r := range slices.Backward(p.Updates) {
		if r.Memory != nil && r.Memory.Limit != nil {
			return *r.Memory.Limit, nil
		}
	}
	s, err := decode(p.spec)
	if err != nil {
		return 0, err
	}
	if l := s.Linux.Resources.Memory.Limit; l != nil {
		return *l, nil
	}
	return 0, nil
}

// Spec is the OCI specification of a container object, or of the sandbox that has one; nil when
// there is none.
func (w *World) Spec(id string) *specs.Spec {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok := w.ctrd.objects[id]
	if !ok {
		return nil
	}
	s, err := decode(o.Spec)
	if err != nil {
		panic(err)
	}
	return s
}

func decode(a typeurl.Any) (*specs.Spec, error) {
	var s specs.Spec
	return &s, typeurl.UnmarshalTo(a, &s)
}

// LoseCodes drops the exit codes of all processes that have ended: berth got an older database, and
// their witnesses are released.
func (w *World) LoseCodes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.inits {
		p.Lost = p.Lost || p.Ended
	}
}
