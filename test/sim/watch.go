// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// Watch sees what berth tells, over all its lives, and notes each broken promise.
type Watch struct {
	w *World

	mu       sync.Mutex
	last     map[string]runtimeapi.ContainerEventType // told last, by container or sandbox
	told     map[string]int                           // by container or sandbox, and event
	exits    map[string]*runtimeapi.ContainerStatus   // as last seen EXITED
	guessed  map[string]bool                          // EXITED was told before the code was known, and its instant stays
	problems []string
}

// NewWatch begins to watch a world.
func NewWatch(w *World) *Watch {
	return &Watch{w: w, last: map[string]runtimeapi.ContainerEventType{}, told: map[string]int{}, exits: map[string]*runtimeapi.ContainerStatus{}, guessed: map[string]bool{}}
}

// Problems are the promises broken so far.
func (v *Watch) Problems() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.problems
}

// Problem notes one.
func (v *Watch) Problem(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problemLocked(format, args...)
}

func (v *Watch) problemLocked(format string, args ...any) {
	if len(v.problems) < 50 {
		v.problems = append(v.problems, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// Told is how often an event of id was told.
func (v *Watch) Told(id string, what runtimeapi.ContainerEventType) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.told[id+" "+what.String()]
}

// heard is what one subscription was told; a new one may be told some of it again.
type heard struct {
	last   map[string]runtimeapi.ContainerEventType
	stamps map[string]int64 // by pod
	exits  map[string]*runtimeapi.ContainerStatus
}

// Follow reads one subscription until it ends.
func (v *Watch) Follow(ctx context.Context, sub cri.Events) {
	defer sub.Close()
	h := heard{last: map[string]runtimeapi.ContainerEventType{}, stamps: map[string]int64{}, exits: map[string]*runtimeapi.ContainerStatus{}}
	for {
		ev, err := sub.Next(ctx)
		if err != nil {
			return
		}
		v.event(ev, h)
	}
}

func (v *Watch) event(ev *runtimeapi.ContainerEventResponse, h heard) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id, what := ev.GetContainerId(), ev.GetContainerEventType()
	pod := ev.GetPodSandboxStatus().GetId()
	if ev.GetPodSandboxStatus() == nil && what != runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT { // of a sandbox whose pod has another
		v.problemLocked("event %s of %s comes without its pod", what, short(id))
	}
	last, again := h.last[id]
	switch {
	case again && what < last:
		v.problemLocked("%s is told of %s after %s", what, short(id), last)
	case again && what == last && what != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		v.problemLocked("%s is told twice of %s", what, short(id))
	}
	h.last[id] = what
	v.last[id] = max(v.last[id], what)
	if ev.GetCreatedAt() <= h.stamps[pod] {
		v.problemLocked("event %s of %s is stamped %d, and the one before %d", what, short(id), ev.GetCreatedAt(), h.stamps[pod])
	}
	h.stamps[pod] = ev.GetCreatedAt()
	v.told[id+" "+what.String()]++
	here := id == pod
	for _, st := range ev.GetContainersStatuses() {
		if st.GetState() == exited {
			v.exitLocked(st, h.exits)
			if v.exits[st.GetId()] == nil {
				v.exits[st.GetId()] = st
			}
		} else if h.exits[st.GetId()] != nil {
			v.problemLocked("%s was told to be EXITED, and then to be %s", short(st.GetId()), st.GetState())
		}
		if st.GetId() != id {
			continue
		}
		here = true
		if what == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && st.GetState() != exited {
			v.problemLocked("STOPPED is told of %s, which is %s", short(id), st.GetState())
		}
	}
	if !here && what != runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		v.problemLocked("%s of %s comes without its status", what, short(id))
	}
}

const exited = runtimeapi.ContainerState_CONTAINER_EXITED

// Exited reports whether anybody was told that id is EXITED.
func (v *Watch) Exited(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exits[id] != nil
}

// Status checks what somebody was told of a container who asked for it; before is what Exited said when he asked.
func (v *Watch) Status(st *runtimeapi.ContainerStatus, before bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if before && st.GetState() != exited {
		v.problemLocked("%s was EXITED and is %s", short(st.GetId()), st.GetState())
	}
	v.statusLocked(st)
}

func (v *Watch) statusLocked(st *runtimeapi.ContainerStatus) {
	if st.GetState() == exited {
		v.exitLocked(st, v.exits)
	}
}

// exitLocked checks an exit against the one that the same listener was told before: an event may carry an older state than
// somebody else knows already.
func (v *Watch) exitLocked(st *runtimeapi.ContainerStatus, told map[string]*runtimeapi.ContainerStatus) {
	id := st.GetId()
	before := told[id]
	told[id] = st
	if before == nil {
		v.guessed[id] = v.guessed[id] || st.GetReason() == "Unknown"
		v.truthLocked(st, false)
		return
	}
	same := before.GetExitCode() == st.GetExitCode() && before.GetReason() == st.GetReason()
	if !same && before.GetReason() != "Unknown" {
		v.problemLocked("%s had ended with %d %s, and now with %d %s", short(id), before.GetExitCode(), before.GetReason(), st.GetExitCode(), st.GetReason())
	}
	if before.GetFinishedAt() != st.GetFinishedAt() {
		v.problemLocked("%s had ended at %d, and now at %d", short(id), before.GetFinishedAt(), st.GetFinishedAt())
	}
	if !same {
		v.truthLocked(st, false)
	}
}

// Final checks a status after which nothing more is to be learned.
func (v *Watch) Final(st *runtimeapi.ContainerStatus) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.statusLocked(st)
	v.truthLocked(st, true)
	if st.GetState() == exited && v.last[st.GetId()] < runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
		v.problemLocked("nobody was told that %s STOPPED", short(st.GetId()))
	}
}

// truthLocked compares a status with what really happened.
func (v *Watch) truthLocked(st *runtimeapi.ContainerStatus, final bool) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	id, code, reason := st.GetId(), uint32(st.GetExitCode()), st.GetReason() //nolint:gosec // 0..255
	p := v.w.inits[id]
	switch {
	case st.GetState() != exited:
		if final && p != nil && p.ended && p.started {
			v.problemLocked("%s has ended with %d and is %s", short(id), p.code, st.GetState())
		}
	case p == nil:
		if reason != "StartError" {
			v.problemLocked("%s never had a process, and ended with %d %s", short(id), code, reason)
		}
	case !p.ended && p.started:
		v.problemLocked("%s is EXITED with %d %s, and its process lives", short(id), code, reason)
	case reason == "StartError" || !p.ended:
		if reason != "StartError" || p.started && !p.killed {
			v.problemLocked("%s was started and ended by itself with %d: not a StartError", short(id), p.code)
		}
	case reason == "Unknown" && code == 255:
		if final && !v.w.unknowable(p) {
			v.problemLocked("%s ended with %d, which could be known and is Unknown", short(id), p.code)
		}
	case code != p.code:
		v.problemLocked("%s ended with %d and is reported with %d %s", short(id), p.code, code, reason)
	default:
		v.momentLocked(st, p)
	}
}

func (v *Watch) momentLocked(st *runtimeapi.ContainerStatus, p *process) {
	want := max(p.at.UnixNano(), st.GetStartedAt())
	if d := time.Duration(st.GetFinishedAt() - want).Abs(); d > time.Millisecond && !v.guessed[p.id] && (v.w.told(p) || p.away && !p.lost) && v.w.Exact {
		v.problemLocked("%s ended at %s and is reported at %s", short(p.id), p.at.Format(time.RFC3339Nano), time.Unix(0, st.GetFinishedAt()).Format(time.RFC3339Nano))
	}
	oom := p.oom > 0 && p.code != 0
	if st.GetReason() == "OOMKilled" && (!oom || p.killed) {
		v.problemLocked("%s is OOMKilled, and was not", short(p.id))
	}
	if oom && !p.asked && !p.lost && !p.vm && st.GetReason() != "OOMKilled" {
		v.problemLocked("%s was killed for want of memory and is %s", short(p.id), st.GetReason())
	}
}

// unknowable: the shim's word is lost, nobody kept a pidfd, and no berth that lived long enough to write it down had the
// kernel's word.
func (w *World) unknowable(p *process) bool {
	return p.lost && !(w.Exact && (p.kept || w.told(p)))
}

// told: the kernel told a berth that lived long enough to write it down.
func (w *World) told(p *process) bool {
	return p.watcher != nil && (!p.watcher.dead() || p.watcher.died.Sub(p.at) > 5*time.Second)
}
