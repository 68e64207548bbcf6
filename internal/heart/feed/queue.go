// SPDX-License-Identifier: Apache-2.0

package feed

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// item is an event and its place in the order of all events.
type item struct {
	ev  *runtimeapi.ContainerEventResponse
	seq uint64
}

// queue holds the events that wait for one subscriber, in order.
//
//	          one more than limit
//	complete ─────────────────────▶ collapsed
//	   ▲                               │
//	   └───────────────────────────────┘
//	              emptied
//
// A complete queue holds every event, a collapsed one the newest event of each container, of no
// more than most containers. It stays collapsed until it is empty, and not only until it is shorter
// than limit: collapsing walks the queue, and a subscriber about as fast as the events come must
// not cause that walk at every event.
type queue struct {
	limit, most int
	complete    []item
	head        int     // index into complete; earlier events have been taken
	collapsed   *latest // nil while complete
}

func (q *queue) len() int {
	if q.collapsed != nil {
		return q.collapsed.len()
	}
	return len(q.complete) - q.head
}

// push appends it. It returns how many waiting events were replaced by newer ones of their
// containers, and how many were dropped.
func (q *queue) push(it item) (coalesced, dropped int) {
	if q.collapsed == nil {
		if q.len() < q.limit {
			q.complete = append(q.complete, it)
			return 0, 0
		}
		coalesced = q.collapse()
	}
	if q.collapsed.put(it) {
		coalesced++
	}
	if q.collapsed.len() > q.most {
		q.collapsed.evict()
		dropped++
	}
	return coalesced, dropped
}

// collapse keeps the newest event of each container and returns how many others there were.
func (q *queue) collapse() (coalesced int) {
	q.collapsed = newLatest()
	for _, it := range q.complete[q.head:] {
		if q.collapsed.put(it) {
			coalesced++
		}
	}
	q.complete, q.head = nil, 0
	return coalesced
}

func (q *queue) pop() (item, bool) {
	if q.collapsed != nil {
		e := q.collapsed.oldest()
		q.collapsed.remove(e)
		if q.collapsed.len() == 0 {
			q.collapsed = nil
		}
		return e.item, true
	}
	if q.len() == 0 {
		return item{}, false
	}
	it := q.complete[q.head]
	q.complete[q.head] = item{} // the event may be large, so it must not be kept in memory
	q.head++
	switch {
	case q.head == len(q.complete):
		q.complete, q.head = q.complete[:0], 0
	case q.head > len(q.complete)/2:
		// A subscriber that never quite catches up must not make the slice grow for ever.
		n := copy(q.complete, q.complete[q.head:])
		clear(q.complete[n:])
		q.complete, q.head = q.complete[:n], 0
	}
	return it, true
}
