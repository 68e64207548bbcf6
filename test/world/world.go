// SPDX-License-Identifier: Apache-2.0

package world

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/host/pins"
)

// World is everything outside berth. Its fields are guarded by mu.
type World struct {
	mu sync.Mutex

	// Exact is set if the kernel reports exit codes to any watcher (Linux 6.15); otherwise it reports
	// only that the process ended.
	Exact bool
	// ShimDelay is how much later than the kernel a shim learns that its process ended.
	ShimDelay time.Duration
	// Gap is how much later than it answers its waiters a shim publishes that a process ended.
	Gap time.Duration
	// ShimQueue is how many ends a shim may have still to publish before a deletion holds it up.
	ShimQueue int
	// Keeper is set if a service manager keeps berth's pidfds.
	Keeper bool

	// Unreaped is set if processes whose shim is dead are not reaped.
	Unreaped bool

	turns  *turns
	ids    uint64  // made so far
	jitter float64 // of berth's back-offs

	life  *Life // of the berth that runs, or nil
	procs map[uint32]*Process
	// inits are the processes of all containers and sandboxes ever made, by ID. Processes that
	// containerd makes beside one that was started, for a call that was given up, are not among them.
	inits map[string]*Process
	pid   uint32

	clock wallClock
	ctrd  containerdState
	disk  diskState
	netns map[string]pins.UserIDs // by path, with the user namespace that owns it
	// sysctls are the sysctls of the network, by the path of its namespace, and hosts the files of
	// pods.
	sysctls map[string]map[string]string
	hosts   map[string]string
	pins    map[string]bool // IPC and UTS namespaces of pods, by ID
	files   map[string]bool // of pods, by ID
	// adopted are the IDs that have something of the runtime before berth.
	adopted map[string]bool
	stdio   map[string]bool // of containers, by directory
	cni     map[string]bool
	// remote: the image Remote is on the node.
	remote bool
	// received counts the archives that were received and not given back.
	received int
	// cutRestores is how many restores are still to be cut off.
	cutRestores int
	// openOutput: something holds the output of new containers open.
	openOutput bool
	// ExecDelay is how long a process that was started takes to execute its program.
	ExecDelay time.Duration
	// boots counts the reboots.
	boots int
	// kept are the processes whose pidfds the service manager keeps for a berth to come.
	kept map[string]*Process
	// unrestored are the tasks whose shim died before it was asked to restore their process.
	unrestored map[string]bool

	rules       []*rule
	healed      chan struct{} // closed, and replaced, by Heal
	lostEvents  int           // exit events of shims that are still to be lost
	early       int           // deletions of tasks in the gap: see Gap
	lostNotices int           // exits of which the kernel's notice is still to be lost

	// steps counts effects. The berth is killed at step killAt: before its effect, or right after it.
	steps     int
	killAt    int
	killAfter bool
	did       []string // all calls: operation and ID

	// book is the record of events, for a person to read.
	book struct {
		sync.Mutex
		lines []string
	}
}

// New makes an empty, healthy world. The seed decides the order of events at the same instant. The
// caller must be in a synctest bubble, call End, and leave synctest.Wait to the world.
func New(seed uint64) *World {
	w := Free()
	w.turns, w.jitter = newTurns(seed), float64(seed%1000)/1000
	w.ShimDelay = time.Millisecond
	go w.turns.run()
	return w
}

// Free makes an empty, healthy world in which everybody passes at once, and shims learn at once
// that their processes ended.
func Free() *World {
	w := &World{
		Exact:   true,
		turns:   &turns{over: true},
		jitter:  0.5,
		procs:   map[uint32]*Process{},
		inits:   map[string]*Process{},
		pid:     1000,
		netns:   map[string]pins.UserIDs{},
		sysctls: map[string]map[string]string{},
		hosts:   map[string]string{},
		pins:    map[string]bool{},
		files:   map[string]bool{},
		adopted: map[string]bool{},
		stdio:   map[string]bool{},
		cni:     map[string]bool{},
		kept:    map[string]*Process{},
		healed:  make(chan struct{}),
		clock:   wallClock{booted: time.Now(), set: make(chan struct{})},

		ShimQueue:  32,
		unrestored: map[string]bool{},
	}
	w.ctrd.init()
	return w
}

// End ends the order of turns: remaining goroutines go on without waiting for one.
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

// Turn waits for the client's turn.
func (w *World) Turn() { w.turns.take("client") }

// Did lists all calls so far: the operation and the ID.
func (w *World) Did() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.did)
}

// Calls is how often op was called on id; "" is any ID.
func (w *World) Calls(op, id string) int {
	n := 0
	for _, call := range w.Did() {
		if on, ok := strings.CutPrefix(call, op+" "); ok && (id == "" || on == id) {
			n++
		}
	}
	return n
}

// Left lists the remaining objects: at the end of a story there must be none.
func (w *World) Left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []string
	for _, p := range w.procs {
		if !p.Ended {
			left = append(left, fmt.Sprintf("process %d of %s", p.pid, Short(p.ID)))
		}
	}
	left = named(left, "network namespace", w.netns)
	left = named(left, "pins", w.pins)
	left = named(left, "files", w.files)
	left = named(left, "stdio", w.stdio)
	left = named(left, "CNI result", w.cni)
	left = named(left, "kept pidfd", w.kept)
	if w.life != nil {
		left = named(left, "watched process", w.life.watched)
	}
	left = append(left, w.ctrd.left()...)
	slices.Sort(left)
	return left
}

func named[T any](list []string, kind string, m map[string]T) []string {
	for id := range m {
		list = append(list, kind+" "+id)
	}
	return list
}

// Held names the remains of the process of id: its task or itself; "" for nothing.
func (w *World) Held(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctrd.tasks[id] != nil {
		return "task"
	}
	if p := w.inits[id]; p != nil && !p.Ended {
		return "process"
	}
	return ""
}
