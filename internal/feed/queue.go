// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"container/list"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// queue is a bounded FIFO of events. Below its limit it keeps every event. Above, it keeps of each
// container only the latest, which is enough to know where it stands; events keep their order. Events
// of containers that exist are never dropped: their number is the bound. Of those that are gone
// (DELETED) at most limit are kept, the latest ones.
type queue struct {
	limit   int
	events  list.List                             // of *runtimeapi.ContainerEventResponse
	byID    map[string]map[*list.Element]struct{} // all elements of one container
	deleted int                                   // DELETED events in the list
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, byID: map[string]map[*list.Element]struct{}{}}
}

func (q *queue) len() int { return q.events.Len() }

// put appends ev and says how many events were folded away and how many final ones dropped.
func (q *queue) put(ev *runtimeapi.ContainerEventResponse) (folded, dropped int) {
	if q.events.Len() >= q.limit {
		folded = q.drop(ev.ContainerId)
		if folded == 0 && q.events.Len() > len(q.byID) { // otherwise there is one of each already
			folded = q.fold()
		}
	}
	e := q.events.PushBack(ev)
	if q.byID[ev.ContainerId] == nil {
		q.byID[ev.ContainerId] = map[*list.Element]struct{}{}
	}
	q.byID[ev.ContainerId][e] = struct{}{}
	if isDeleted(ev) {
		q.deleted++
	}
	if q.deleted > q.limit {
		for e := q.events.Front(); e != nil; e = e.Next() {
			if isDeleted(e.Value.(*runtimeapi.ContainerEventResponse)) {
				q.remove(e)
				return folded, 1
			}
		}
	}
	return folded, 0
}

func isDeleted(ev *runtimeapi.ContainerEventResponse) bool {
	return ev.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
}

// drop removes all events of one container.
func (q *queue) drop(id string) int {
	n := len(q.byID[id])
	for e := range q.byID[id] {
		q.remove(e)
	}
	return n
}

// fold keeps the latest event of each container.
func (q *queue) fold() int {
	n := 0
	seen := map[string]bool{}
	for e := q.events.Back(); e != nil; {
		before := e.Prev()
		id := e.Value.(*runtimeapi.ContainerEventResponse).ContainerId
		if seen[id] {
			q.remove(e)
			n++
		}
		seen[id] = true
		e = before
	}
	return n
}

func (q *queue) remove(e *list.Element) {
	ev := q.events.Remove(e).(*runtimeapi.ContainerEventResponse)
	if isDeleted(ev) {
		q.deleted--
	}
	elements := q.byID[ev.ContainerId]
	delete(elements, e)
	if len(elements) == 0 {
		delete(q.byID, ev.ContainerId)
	}
}

// pop takes the oldest event, or nil.
func (q *queue) pop() *runtimeapi.ContainerEventResponse {
	e := q.events.Front()
	if e == nil {
		return nil
	}
	ev := e.Value.(*runtimeapi.ContainerEventResponse)
	q.remove(e)
	return ev
}
