// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
)

// World is everything outside berth. Its fields are guarded by mu.
type World struct {
	mu sync.Mutex

	// Exact says that the kernel tells exit codes to any watcher (Linux 6.15); false: only that it ended.
	Exact bool
	// ShimDelay is how much later than the kernel a shim learns of an end.
	ShimDelay time.Duration
	// Keeper says that a service manager keeps the pidfds that berth hands it.
	Keeper bool

	life  *life // of the berth that runs, or nil
	procs map[uint32]*process
	inits map[string]*process // the process of each container and sandbox ever made, by ID
	pid   uint32

	ctrd  containerdState
	netns map[string]bool
	files map[string]bool
	cni   map[string]bool
	// kept are the processes whose pidfds the service manager keeps for a berth to come.
	kept map[string]*process

	rules []*rule
	full  bool // the disk
	mute  int  // exit events of shims still to be swallowed
	deaf  int  // exits of which the kernel's word is still to be swallowed

	// steps counts effects; the berth is killed at step killAt: before its effect, or right after it.
	steps     int
	killAt    int
	killAfter bool
	calls     map[string]int // by operation and ID

	// book is what happened, for a person to read.
	book struct {
		sync.Mutex
		lines []string
	}
}

// life is one berth's access to the world, until it dies.
type life struct {
	gone    chan struct{} // closed at death
	died    time.Time
	watched map[string]*process
	sink    func(p *process) // the kernel's word
}

func (l *life) dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// process is one init process.
type process struct {
	id      string
	pid     uint32
	ticks   uint64
	cgroup  string
	started bool
	ended   bool
	reaped  bool // nobody can ask for its status any more but by a pidfd
	code    uint32
	at      time.Time
	oom     uint64
	vm      bool // its cgroup is not on this host
	killed  bool // by SIGKILL from berth
	asked   bool // berth sent it any signal

	// watcher is the life that the kernel told of its end when it came; kept: a later one still had its pidfd.
	// away: no berth ran then.
	watcher *life
	kept    bool
	away    bool
	// lost says that its shim died, or containerd dropped its task, so that only the kernel can know the code.
	lost bool
}

// rule makes an operation fail or stall.
type rule struct {
	op, id string // id "" matches all
	times  int    // how often still
	stall  time.Duration
	err    error
	late   bool // the effect takes place although the call fails
}

// NewWorld is empty and healthy.
func NewWorld() *World {
	w := &World{
		Exact: true, ShimDelay: time.Millisecond, procs: map[uint32]*process{}, inits: map[string]*process{}, pid: 1000, netns: map[string]bool{}, files: map[string]bool{},
		cni: map[string]bool{}, kept: map[string]*process{}, calls: map[string]int{},
	}
	w.ctrd.init()
	return w
}

var (
	errKilled = errors.New("berth is dead: nothing that it does reaches the world")
	errInject = errors.New("this was made to fail")
	errFull   = errors.New("no space left on device")
)

// do is the door of each effect of a life on the world: counted, killed, stalled or failed if that was asked for. effect
// runs with the world locked.
func (w *World) do(ctx context.Context, l *life, op, id string, effect func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.dead() {
		return errKilled
	}
	w.steps++
	last := w.steps == w.killAt
	w.calls[op+" "+id]++
	w.note(op, id)
	if last {
		w.killAt = -1
	}
	if last && !w.killAfter {
		w.killLocked(l)
		return errKilled
	}
	if r := w.match(op, id); r != nil {
		if r.stall > 0 {
			if err := w.stallLocked(ctx, l, r.stall); err != nil {
				if r.late {
					w.later(effect)
				}
				return err
			}
		}
		if r.err != nil {
			if r.late {
				_ = effect()
			}
			return fmt.Errorf("%s %s: %w", op, id, r.err)
		}
	}
	err := effect()
	if last && w.killAt < 0 {
		w.killLocked(l)
		return errKilled
	}
	return err
}

// later carries out what its caller has given up.
func (w *World) later(effect func() error) {
	time.AfterFunc(time.Minute, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note("*** what was given up is carried out", "")
		_ = effect()
	})
}

func (w *World) note(op, id string) { w.line(op + " " + short(id)) }

func (w *World) line(s string) {
	w.book.Lock()
	defer w.book.Unlock()
	if len(w.book.lines) < 20000 {
		w.book.lines = append(w.book.lines, time.Now().Format("04:05.000 ")+s)
	}
}

// journal is berth's log, as part of the world's.
type journal struct{ w *World }

func (j journal) Write(b []byte) (int, error) {
	_, text, _ := strings.Cut(string(b), "level=")
	j.w.line("      " + strings.TrimSpace(text))
	return len(b), nil
}

func short(id string) string { return id[:min(len(id), 8)] }

func (w *World) match(op, id string) *rule {
	for _, r := range w.rules {
		if r.times > 0 && r.op == op && (r.id == "" || r.id == id) {
			r.times--
			return r
		}
	}
	return nil
}

// stallLocked waits with the world unlocked.
func (w *World) stallLocked(ctx context.Context, l *life, d time.Duration) error {
	w.mu.Unlock()
	defer w.mu.Lock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.gone:
		return errKilled
	}
}

// read is the door of what has no effect.
func (w *World) read(ctx context.Context, l *life, op, id string, look func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.dead() {
		return errKilled
	}
	w.calls[op+" "+id]++
	if r := w.match(op, id); r != nil {
		if r.stall > 0 {
			if err := w.stallLocked(ctx, l, r.stall); err != nil {
				return err
			}
		}
		if r.err != nil {
			return fmt.Errorf("%s %s: %w", op, id, r.err)
		}
	}
	return look()
}

func (w *World) killLocked(l *life) {
	if l.dead() {
		return
	}
	w.note("--- berth dies", "")
	l.died = time.Now()
	close(l.gone)
	if w.life == l {
		w.life = nil
	}
}

// begin gives a new berth access.
func (w *World) begin() *life {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != nil {
		panic("two berths at the same time")
	}
	w.note("--- berth starts", "")
	w.life = &life{gone: make(chan struct{}), watched: map[string]*process{}}
	return w.life
}

// Fail makes the next times calls of op on id fail ("" for any).
func (w *World) Fail(op, id string, times int) {
	w.add(&rule{op: op, id: id, times: times, err: errInject})
}

// Stall makes the next times calls of op on id take d longer.
func (w *World) Stall(op, id string, times int, d time.Duration) {
	w.add(&rule{op: op, id: id, times: times, stall: d})
}

// Late makes the next call of op on id take d, and be carried out a minute after its caller has given it up.
func (w *World) Late(op, id string, d time.Duration) {
	w.add(&rule{op: op, id: id, times: 1, stall: d, late: true})
}

// Lose makes the next call of op on id take effect and fail all the same.
func (w *World) Lose(op, id string) {
	w.add(&rule{op: op, id: id, times: 1, err: errInject, late: true})
}

func (w *World) add(r *rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(w.rules, r)
}

// Heal ends all that was made to fail, stall or be swallowed, but not what is down.
func (w *World) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules, w.full, w.mute, w.deaf = nil, false, 0, 0
}

// DiskFull makes commits fail, or work again.
func (w *World) DiskFull(full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = full
}

// Swallow makes the next events of shims, and the next words of the kernel, be lost.
func (w *World) Swallow(events, words int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute += events
	w.deaf += words
}

// KillAt has the running berth, or the next, killed at its n-th effect from now: before it takes place, or right after.
func (w *World) KillAt(n int, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killAt, w.killAfter = w.steps+n, after
	if n == 0 {
		w.killAt = 0
	}
}

// Steps is the number of effects so far.
func (w *World) Steps() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.steps
}

// Calls is how often op was called on id.
func (w *World) Calls(op, id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op+" "+id]
}

// spawn makes a process. The world must be locked.
func (w *World) spawn(id string) *process {
	w.pid++
	p := &process{id: id, pid: w.pid, ticks: uint64(w.pid) * 10, cgroup: fmt.Sprint("/cg/", id)}
	w.procs[p.pid] = p
	w.inits[id] = p
	return p
}

// Exit ends the process of id. False: there is none, or it has ended.
func (w *World) Exit(id string, code uint32, oom bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.ended || !p.started {
		return false
	}
	if oom {
		p.oom++
		if s := w.ctrd.shimOf(id); s != nil && !s.dead {
			w.ctrd.send("/tasks/oom", &eventtypes.TaskOOM{ContainerID: id})
		}
	}
	w.end(p, code)
	return true
}

// end makes p a zombie, tells the kernel's watcher, and lets the shim reap it a moment later.
func (w *World) end(p *process, code uint32) {
	p.ended, p.code, p.at, p.away = true, code, time.Now(), w.life == nil
	w.note(fmt.Sprintf("*** process ends with %d", code), p.id)
	if l := w.life; l != nil && l.watched[p.id] == p {
		if w.deaf > 0 {
			w.deaf--
		} else {
			p.watcher = l
			go l.sink(p)
		}
	}
	if s := w.ctrd.shimOf(p.id); s == nil || s.dead {
		p.reaped = true // by the host's init
		return
	}
	time.AfterFunc(w.ShimDelay, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ctrd.reap(w, p)
	})
}

// signal delivers sig from berth. The world must be locked.
func (w *World) signal(p *process, sig uint32) error {
	if p == nil || p.ended {
		return errdefs.ErrNotFound
	}
	p.asked = true
	if sig == 9 {
		p.killed = true
		w.end(p, 137)
	}
	return nil
}

// Left lists what there is outside, for the end of a story: nothing.
func (w *World) Left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []string
	for _, p := range w.procs {
		if !p.ended {
			left = append(left, fmt.Sprintf("process %d of %s", p.pid, short(p.id)))
		}
	}
	for _, m := range []struct {
		kind string
		ids  []string
	}{
		{"network namespace", slices.Collect(maps.Keys(w.netns))}, {"files", slices.Collect(maps.Keys(w.files))}, {"CNI result", slices.Collect(maps.Keys(w.cni))},
		{"kept pidfd", slices.Collect(maps.Keys(w.kept))},
	} {
		for _, id := range m.ids {
			left = append(left, m.kind+" "+id)
		}
	}
	left = append(left, w.ctrd.left()...)
	slices.Sort(left)
	return left
}

// Killed reports whether the death that KillAt asked for has come.
func (w *World) Killed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killAt < 0
}

// Held names something that is still there for the process of id: its task or its process; "" for nothing.
func (w *World) Held(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctrd.tasks[id] != nil {
		return "task"
	}
	if p := w.inits[id]; p != nil && !p.ended {
		return "process"
	}
	return ""
}
