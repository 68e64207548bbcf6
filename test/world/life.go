// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"berth/internal/base/clock"
	"berth/internal/base/connection"
	"berth/internal/base/exit"
	"berth/internal/engine/ctrd"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
	"berth/internal/host/spec"
)

// ErrKilled is the error of each call of a dead berth.
var ErrKilled = errors.New("berth is dead: nothing that it does reaches the world")

// Life is one berth's access to the world, until it dies.
type Life struct {
	// Clock makes its instants. The simulation replaces it by one that goes on with that of the life
	// before.
	Clock      *clock.Clock
	w          *World
	gone       chan struct{} // closed at its death
	watched    map[string]*Process
	inherited  map[string]*Process // whose pidfds an earlier life left, until they are asked for
	exited     func(f exit.Fact)
	oomNoted   func(ids []string) // nil if notices are not wanted
	oomWatched map[string]bool    // IDs
	groups     groups
}

// NotifyOOM makes the kernel notify f of OOM kills in the groups that this life watches.
func (l *Life) NotifyOOM(f func(ids []string)) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.oomNoted = f
}

// Begin gives a new berth access. The kernel reports the ends of processes to exited.
func (w *World) Begin(exited func(f exit.Fact)) *Life {
	made := clock.New(w.Clocks())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != nil {
		panic("two berths at the same time")
	}
	w.note("--- berth starts", "")
	w.life = &Life{
		Clock:      made,
		w:          w,
		gone:       make(chan struct{}),
		watched:    map[string]*Process{},
		inherited:  maps.Clone(w.kept),
		exited:     exited,
		oomWatched: map[string]bool{},
		groups:     groups{},
	}
	return w.life
}

// Ports are the ports of a controller of this life, and the adapter among them that stands between
// it and containerd. Commits go to store.
func (l *Life) Ports(store pod.Store, owner string, log *slog.Logger) (pod.Ports, *ctrd.Containerd, error) {
	client, err := l.w.client(l)
	if err != nil {
		return pod.Ports{}, nil, fmt.Errorf("make a client of the fake containerd: %w", err)
	}
	adapter := ctrd.New(connection.Through(client), ctrd.Config{
		Owner:       owner,
		Clock:       l.Clock,
		Snapshotter: snapshotter,
		Shims:       shims.Nowhere(log), // the remains of tasks are in the world
		Logger:      log,
	})
	return pod.Ports{
		Runtime: runtime{adapter, fakeTasks{services: services{w: l.w, l: l}}},
		Kernel:  kernel{l.w, l},
		Cgroups: cgroups{l.w, l},
		Network: plumbing{l.w, l},
		NetNS:   netns{l.w, l},
		Files:   files{l.w, l},
		Pins:    spaces{l.w, l},
		Stdios:  outputs{l.w, l},
		Images:  library{l.w, l},
		Store:   disk{l.w, l, store},

		Checkpoints: archives{l.w, l},
		Turn:        l.w.turns.take,
		SandboxShim: func(_ context.Context, handler string) bool { return WithoutProcess(handler) },
	}, adapter, nil
}

// Log is where the berth logs to: it becomes a part of the world's journal.
func (l *Life) Log() *slog.Logger { return slog.New(slog.NewTextHandler(journal{l.w, l}, nil)) }

// Gone is closed when the berth is dead.
func (l *Life) Gone() <-chan struct{} { return l.gone }

// Dead reports whether the berth is dead.
func (l *Life) Dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// Kill ends the life: from this instant on nothing that the berth does has an effect.
func (l *Life) Kill() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.killLocked()
}

func (l *Life) killLocked() {
	if l.Dead() {
		return
	}
	l.w.note("--- berth dies", "")
	l.w.commitsFail()
	close(l.gone)
	if l.w.life == l {
		l.w.life = nil
	}
}

// KillAt kills the running berth, or the next one, at its n-th effect from now: before the effect
// takes place, or right after it. 0 calls it off.
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

// Handlers whose sandboxes have no process.
const (
	Pinned  = "pinned"  // each has a shim of its own
	Grouped = "grouped" // two share a shim
)

// WithoutProcess reports whether the sandboxes of a handler have no process.
func WithoutProcess(handler string) bool { return handler == Pinned || handler == Grouped }

// Config is a node's. IDs and jitter come from the seed. The handlers have sandboxes of each kind.
func (w *World) Config() pod.Config {
	handlers := map[string]pod.Handler{}
	for _, h := range []pod.Handler{
		{Name: "runc", Type: "runc", HostProcess: true},
		{Name: Pinned, Type: "runc", HostProcess: true},
		{Name: Grouped, Type: "runc", HostProcess: true, ShimPods: 2},
		{Name: "vm", Type: "vm"},
		{Name: "scopes", Type: "runc", HostProcess: true, SystemdCgroup: true},
		{Name: "imaged", Type: "runc", HostProcess: true, SandboxImage: Remote},
		{Name: "shim", Type: "shim", HostProcess: true, Sandboxer: "shim"},
		{Name: "vmm", Type: "vm", Sandboxer: "vmm"},
	} {
		handlers[h.Name] = h
	}
	return pod.Config{
		DefaultHandler: "runc",
		ResolvConf:     "/nonexistent",
		Handlers:       handlers,
		Host:           spec.Host{MinOOMScoreAdj: -1000, Capabilities: []string{"CAP_CHOWN", "CAP_SYS_BOOT"}},
		NewID:          w.newID,
		Rand:           func() float64 { return w.jitter },
	}
}
