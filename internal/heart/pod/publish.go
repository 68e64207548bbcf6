// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// publisher publishes the events of units, each with the whole state of the pod at that time. An
// event is published only after its state is durable.
type publisher struct {
	feed     Feed
	statuses *statuses
	units    *registry
}

// published is which events of a unit were published.
type published struct {
	pod  sync.Mutex // of a sandbox: serialises the events of its pod
	next int        // the type after the last one; guarded by the lock of the pod
}

// publish publishes an event of u, after those that come before it and were not published yet:
// CREATED, STARTED, STOPPED, DELETED, in this order, each once.
func (p *publisher) publish(u *unit, what runtimeapi.ContainerEventType) {
	u.pod.published.pod.Lock()
	defer u.pod.published.pod.Unlock()
	first := u.published.next
	if what == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT && first == 0 {
		return // no subscriber ever saw it
	}
	for t := first; t <= int(what); t++ {
		if t == int(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT) && u.now().StartedAt.IsZero() ||
			t == int(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT) && !u.now().Phase.Ended() {
			continue // it never started; it was removed without having run
		}
		p.sendLocked(u, runtimeapi.ContainerEventType(t))
		u.published.next = t + 1
	}
}

// stopped publishes the settled exit of u.
func (p *publisher) stopped(u *unit) {
	p.publish(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// stoppedAgain repeats the STOPPED event of u, whose content has changed.
func (p *publisher) stoppedAgain(u *unit) {
	u.pod.published.pod.Lock()
	defer u.pod.published.pod.Unlock()
	if u.published.next == int(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)+1 {
		p.sendLocked(u, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// assume sets which events of a unit of an earlier berth count as published. Whether the last one
// before the restart was received is not known, so the end of a unit is published again.
func (p *publisher) assume(u *unit) {
	switch st := u.now(); {
	case !u.visible():
	case st.StartedAt.IsZero():
		u.published.next = int(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT) + 1
	default:
		u.published.next = int(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT) + 1
	}
}

// forget lets the feed drop the memory of a pod that is gone.
func (p *publisher) forget(sandbox *unit) { p.feed.Forget(sandbox.id) }

// sendLocked needs the lock of the pod held.
func (p *publisher) sendLocked(u *unit, what runtimeapi.ContainerEventType) {
	sandbox := u.pod
	// before the snapshot: the stamp must not be later
	stamp := p.feed.Stamp(sandbox.id, sandbox.clock.Wall(sandbox.clock.Now()))
	ev := &runtimeapi.ContainerEventResponse{
		ContainerId:        u.id,
		ContainerEventType: what,
		CreatedAt:          stamp,
	}
	deleted := what == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	if u.isSandbox() && deleted && p.units.hasSibling(u) {
		// The kubelet forgets the pod when the sandbox in the event's status is deleted, and looks the
		// pod up by its UID, which is the other sandbox's as well. Without a status it ignores the event.
		p.feed.Publish(ev)
		return
	}
	ev.PodSandboxStatus = p.statuses.sandbox(sandbox)
	all := sandbox.containers()
	if !u.isSandbox() && !deleted && !slices.Contains(all, u) {
		all = append(all, u) // its removal is faster than this event
	}
	ev.ContainersStatuses = p.statuses.newestFirst(all)
	p.feed.Publish(ev)
}

// started publishes that u runs.
func (p *publisher) started(u *unit) {
	p.publish(u, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
}
