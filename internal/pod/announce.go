// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tell publishes what happened to u, with the pod's whole state as it is now. What came before
// and was not told yet is told first: CREATED, STARTED, STOPPED, DELETED, in this order,
// each once. An event says what the state is, so it is told only after the state is durable.
func (c *Controller) tell(u *unit, what runtimeapi.ContainerEventType) {
	p := u.pod
	p.telling.Lock()
	defer p.telling.Unlock()
	first := u.told
	if what == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT && first == 0 {
		return // it never came to be, as far as anyone was told
	}
	for t := first; t <= int(what); t++ {
		if t == int(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT) && u.now().StartedAt.IsZero() ||
			t == int(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT) && !u.now().Phase.Ended() {
			continue // it never started; it was removed without having run
		}
		c.publish(u, runtimeapi.ContainerEventType(t))
		u.told = t + 1
	}
}

// tellAgain repeats an event whose content has changed.
func (c *Controller) tellAgain(u *unit, what runtimeapi.ContainerEventType) {
	p := u.pod
	p.telling.Lock()
	defer p.telling.Unlock()
	if u.told == int(what)+1 {
		c.publish(u, what)
	}
}

// publish needs the pod's telling lock held.
func (c *Controller) publish(u *unit, what runtimeapi.ContainerEventType) {
	p := u.pod
	stamp := c.feed.Stamp(p.id, time.Now()) // before the snapshot, which is never older
	ev := &runtimeapi.ContainerEventResponse{
		ContainerId:        u.id,
		ContainerEventType: what,
		CreatedAt:          stamp,
		PodSandboxStatus:   c.sandboxStatus(p),
	}
	all := p.containers()
	if !u.isSandbox() && what != runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT && !slices.Contains(all, u) {
		all = append(all, u) // its removal is faster than this word
	}
	for _, ct := range all {
		if visible(ct) {
			ev.ContainersStatuses = append(ev.ContainersStatuses, c.containerStatus(ct))
		}
	}
	c.feed.Publish(ev)
}
