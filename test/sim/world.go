// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
)

// World is everything outside berth. Its fields are guarded by mu.
type World struct {
	mu sync.Mutex

	// Exact says that the kernel reports exit codes to any watcher (Linux 6.15); false: only that
	// the process ended.
	Exact bool
	// ShimDelay is how much later than the kernel a shim learns that its process ended.
	ShimDelay time.Duration
	// Keeper says that a service manager keeps the pidfds that berth hands it.
	Keeper bool

	turns  *turns
	ids    uint64  // made so far
	jitter float64 // of berth's back-offs

	life  *life // of the berth that runs, or nil
	procs map[uint32]*process
	// inits are the processes of all containers and sandboxes ever made, by ID. What containerd
	// makes beside one that was started, for a call that was given up, is not among them.
	inits map[string]*process
	pid   uint32

	ctrd  containerdState
	disk  diskState
	netns map[string]bool
	files map[string]bool // of pods, by ID
	stdio map[string]bool // of containers, by directory
	cni   map[string]bool
	// kept are the processes whose pidfds the service manager keeps for a berth to come.
	kept map[string]*process

	rules       []*rule
	lostEvents  int // exit events of shims that are still to be lost
	lostNotices int // exits of which the kernel's notice is still to be lost

	// steps counts effects. The berth is killed at step killAt: before its effect, or right after
	// it.
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
	gone      chan struct{} // closed at its death
	watched   map[string]*process
	inherited map[string]*process // whose pidfds an earlier life left, until they are asked for
	notify    func(p *process)    // is called when a process that it watches ended
}

func (l *life) dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// process is the init process of a container or a sandbox.
type process struct {
	id      string
	pid     uint32
	ticks   uint64
	cgroup  string
	started bool
	ended   bool
	reaped  bool // nobody can ask for its status any more but with a pidfd
	code    uint32
	at      time.Time
	oom     uint64
	vm      bool // its cgroup is not on this host
	killed  bool // by a SIGKILL from berth
	asked   bool // berth sent it any signal

	// watcher is the life that the kernel notified of the end when it came.
	watcher *life
	// recorded: watcher lived long enough, with a disk that works, to record what it knew.
	recorded bool
	// kept: a later life still had a pidfd of it.
	kept bool
	// away: no berth ran when it ended.
	away bool
	// unanswered: containerd was asked about its task and could not say.
	unanswered bool
	// lost: its shim died, or containerd dropped its task, so that only the kernel can know the
	// code.
	lost bool

	spec   typeurl.Any // that its task was made with
	memory int64       // its limit, if that was updated
}

// NewWorld makes an empty, healthy world. The seed decides the order of what happens at the same
// instant. The caller must be in a synctest bubble, and call End.
func NewWorld(seed uint64) *World {
	w := &World{
		turns:     newTurns(seed),
		jitter:    float64(seed%1000) / 1000,
		Exact:     true,
		ShimDelay: time.Millisecond,
		procs:     map[uint32]*process{},
		inits:     map[string]*process{},
		pid:       1000,
		netns:     map[string]bool{},
		files:     map[string]bool{},
		stdio:     map[string]bool{},
		cni:       map[string]bool{},
		kept:      map[string]*process{},
		calls:     map[string]int{},
	}
	w.ctrd.init()
	go w.turns.run()
	return w
}

// End ends the order of turns: what still runs does so without waiting for one.
func (w *World) End() { w.turns.end() }

// newID makes the next ID of a sandbox or container.
func (w *World) newID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], w.turns.seed)
	binary.LittleEndian.PutUint64(b[8:], w.ids)
	h := sha256.Sum256(b[:])
	return hex.EncodeToString(h[:])
}

// begin gives a new berth access.
func (w *World) begin() *life {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != nil {
		panic("two berths at the same time")
	}
	w.note("--- berth starts", "")
	w.life = &life{gone: make(chan struct{}), watched: map[string]*process{}, inherited: maps.Clone(w.kept)}
	return w.life
}

func (w *World) killLocked(l *life) {
	if l.dead() {
		return
	}
	w.note("--- berth dies", "")
	w.commitsFail()
	close(l.gone)
	if w.life == l {
		w.life = nil
	}
}

// KillAt has the running berth, or the next one, killed at its n-th effect from now: before the
// effect takes place, or right after it. 0 calls it off.
func (w *World) KillAt(n int, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killAt, w.killAfter = w.steps+n, after
	if n == 0 {
		w.killAt = 0
	}
}

// Killed reports whether the death that KillAt asked for has come.
func (w *World) Killed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killAt < 0
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
	p := &process{id: id, pid: w.pid, ticks: uint64(w.pid) * 10, cgroup: cgroupOf(id)}
	w.procs[p.pid] = p
	if old := w.inits[id]; old == nil || !old.started {
		w.inits[id] = p
	}
	return p
}

// Exit ends the process of id. It reports false when there is none that runs.
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
			w.ctrd.send(w, "/tasks/oom", &eventtypes.TaskOOM{ContainerID: id})
		}
	}
	w.end(p, code)
	return true
}

// end makes p a zombie, notifies the life that watches it, and lets the shim reap it ShimDelay
// later. The world must be locked.
func (w *World) end(p *process, code uint32) {
	p.ended, p.code, p.at, p.away = true, code, time.Now(), w.life == nil
	w.note(fmt.Sprintf("*** process ends with %d", code), p.id)
	if l := w.life; l != nil && l.watched[p.id] == p {
		if w.lostNotices > 0 {
			w.lostNotices--
		} else {
			p.watcher = l
			go w.notify(l, p)
		}
	}
	if s := w.ctrd.shimOf(p.id); s == nil || s.dead {
		p.reaped = true // by the host's init
		return
	}
	time.AfterFunc(w.ShimDelay, func() {
		w.turns.take("shim " + p.id)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ctrd.reap(w, p)
	})
}

func (w *World) notify(l *life, p *process) {
	w.turns.take("kernel " + p.id)
	l.notify(p)
}

// signal delivers a signal from berth. The world must be locked.
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

// Left lists what there still is: at the end of a story there must be nothing.
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
		{"network namespace", slices.Collect(maps.Keys(w.netns))},
		{"files", slices.Collect(maps.Keys(w.files))},
		{"stdio", slices.Collect(maps.Keys(w.stdio))},
		{"CNI result", slices.Collect(maps.Keys(w.cni))},
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

// Held names what there still is of the process of id: its task or itself; "" for nothing.
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
