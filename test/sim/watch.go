// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/serve/cri"
	"berth/test/world"
)

// Watch observes the reports of berth, over all its lives, and notes each broken promise.
type Watch struct {
	w       *world.World
	onEvent func(*runtimeapi.ContainerEventResponse) // is called with each event that is received

	mu        sync.Mutex
	last      map[string]runtimeapi.ContainerEventType // published last, by container or sandbox
	published map[string]int                           // events, by container or sandbox and type
	exits     map[string]*runtimeapi.ContainerStatus   // as last seen EXITED, by anybody
	wasReady  map[string]bool                          // sandboxes without a process that were READY
	asked     map[string]bool                          // sandboxes that a client has asked to stop
	// EXITED was reported before the code was known; its instant stays
	guessed  map[string]bool
	problems []string
}

// NewWatch begins to watch a world. onEvent is called with each event that a subscriber receives.
func NewWatch(w *world.World, onEvent func(*runtimeapi.ContainerEventResponse)) *Watch {
	return &Watch{
		w:         w,
		onEvent:   onEvent,
		last:      map[string]runtimeapi.ContainerEventType{},
		published: map[string]int{},
		exits:     map[string]*runtimeapi.ContainerStatus{},
		wasReady:  map[string]bool{},
		asked:     map[string]bool{},
		guessed:   map[string]bool{},
	}
}

// Problems are the promises broken so far.
func (v *Watch) Problems() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.problems
}

// Problem notes a broken promise.
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

// Published is how often an event of id was published.
func (v *Watch) Published(id string, what runtimeapi.ContainerEventType) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.published[id+" "+what.String()]
}

// Exit is the status of id as somebody was told last that it is EXITED, or nil.
func (v *Watch) Exit(id string) *runtimeapi.ContainerStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exits[id]
}

// Exited reports whether id was EXITED for anybody.
func (v *Watch) Exited(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exits[id] != nil
}

// received holds the events of one subscription. Another one may deliver some of it again.
type received struct {
	last   map[string]runtimeapi.ContainerEventType
	stamps map[string]int64 // by pod
	exits  map[string]*runtimeapi.ContainerStatus
}

// Follow reads a subscription until it ends.
func (v *Watch) Follow(ctx context.Context, sub cri.Events) {
	defer sub.Close()
	r := received{
		last:   map[string]runtimeapi.ContainerEventType{},
		stamps: map[string]int64{},
		exits:  map[string]*runtimeapi.ContainerStatus{},
	}
	for {
		ev, err := sub.Next(ctx)
		if err != nil {
			return
		}
		v.event(ev, r)
	}
}

func (v *Watch) event(ev *runtimeapi.ContainerEventResponse, r received) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onEvent(ev)
	id, what := ev.GetContainerId(), ev.GetContainerEventType()
	pod := ev.GetPodSandboxStatus().GetId()
	deleted := what == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	if ev.GetPodSandboxStatus() == nil && !deleted { // DELETED of a sandbox whose pod has another
		v.problemLocked("event %s of %s has no pod", what, world.Short(id))
	}
	last, again := r.last[id]
	switch {
	case again && what < last:
		v.problemLocked("%s of %s follows %s", what, world.Short(id), last)
	case again && what == last && what != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		v.problemLocked("%s of %s comes twice", what, world.Short(id))
	}
	r.last[id] = what
	v.last[id] = max(v.last[id], what)
	if ev.GetCreatedAt() <= r.stamps[pod] {
		v.problemLocked("%s of %s is stamped %d, and the event before it %d", what, world.Short(id), ev.GetCreatedAt(), r.stamps[pod])
	}
	r.stamps[pod] = ev.GetCreatedAt()
	v.published[id+" "+what.String()]++
	here := id == pod
	for _, st := range ev.GetContainersStatuses() {
		v.eventStatusLocked(st, r)
		if st.GetId() != id {
			continue
		}
		here = true
		if what == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && st.GetState() != exited {
			v.problemLocked("%s of %s, which is %s", what, world.Short(id), st.GetState())
		}
	}
	if !here && !deleted {
		v.problemLocked("%s of %s has no status of it", what, world.Short(id))
	}
}

func (v *Watch) eventStatusLocked(st *runtimeapi.ContainerStatus, r received) {
	id := st.GetId()
	if st.GetState() != exited {
		if r.exits[id] != nil {
			v.problemLocked("%s was EXITED in an event, and then %s", world.Short(id), st.GetState())
		}
		return
	}
	v.exitLocked(st, r.exits)
	if v.exits[id] == nil {
		v.exits[id] = st
	}
}

// Asked notes that a client asks a sandbox to stop.
func (v *Watch) Asked(pod string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked[pod] = true
}

// Sandbox checks the state of a sandbox. One without a process is READY as long as it has its
// namespaces and no stop was requested.
func (v *Watch) Sandbox(p *runtimeapi.PodSandbox) {
	id, ready := p.GetId(), p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	if !world.WithoutProcess(p.GetRuntimeHandler()) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch pinned := v.w.Pinned(id); {
	case ready && !pinned:
		v.problemLocked("%s is READY without its namespaces", world.Short(id))
	case !ready && pinned && v.wasReady[id] && !v.asked[id]:
		v.problemLocked("%s was READY, and nobody has asked it to stop", world.Short(id))
	}
	v.wasReady[id] = v.wasReady[id] || ready
}

const exited = runtimeapi.ContainerState_CONTAINER_EXITED

// Status checks the answer to a request for a container's status. before is the result of Exited
// when the question was asked.
func (v *Watch) Status(st *runtimeapi.ContainerStatus, before bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if before && st.GetState() != exited {
		v.problemLocked("%s was EXITED and is %s", world.Short(st.GetId()), st.GetState())
	}
	v.statusLocked(st)
}

func (v *Watch) statusLocked(st *runtimeapi.ContainerStatus) {
	if st.GetState() == exited {
		v.exitLocked(st, v.exits)
	}
}

// exitLocked checks an exit against the one that the same reader saw before: an event may carry an
// older state than the one that another reader has already seen.
func (v *Watch) exitLocked(st *runtimeapi.ContainerStatus, seen map[string]*runtimeapi.ContainerStatus) {
	id := st.GetId()
	before := seen[id]
	seen[id] = st
	if before == nil {
		v.guessed[id] = v.guessed[id] || st.GetReason() == "Unknown"
		v.truthLocked(st, false)
		return
	}
	sameCode := before.GetExitCode() == st.GetExitCode()
	same := sameCode && before.GetReason() == st.GetReason()
	// If a container has no cgroup on the host, containerd alone reports its OOM kills, and may be
	// late. A counter that could not be read is read again later.
	p := v.w.Process(id)
	late := p != nil && (p.VM || p.Uncounted) && sameCode && before.GetReason() == "Error" && st.GetReason() == "OOMKilled"
	corrected := firstThread(p, uint32(before.GetExitCode()))
	if !same && !late && !corrected && before.GetReason() != "Unknown" {
		v.problemLocked("%s had ended with %d %s, and now with %d %s",
			world.Short(id), before.GetExitCode(), before.GetReason(), st.GetExitCode(), st.GetReason())
	}
	if before.GetFinishedAt() != st.GetFinishedAt() && v.w.ClockSets() == 0 {
		v.problemLocked("%s had ended at %d, and now at %d", world.Short(id), before.GetFinishedAt(), st.GetFinishedAt())
	}
	if !same {
		v.truthLocked(st, false)
	}
}

// Final checks a status when everything that can be known must be known.
func (v *Watch) Final(st *runtimeapi.ContainerStatus) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.statusLocked(st)
	v.truthLocked(st, true)
	if st.GetState() == exited && v.last[st.GetId()] < runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
		v.problemLocked("STOPPED of %s was never published", world.Short(st.GetId()))
	}
}
