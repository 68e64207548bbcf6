// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"iter"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// entry is the newest event of a container.
type entry struct {
	item
	// handed is when it was handed to a subscriber that it was new to. It is zero if it never was,
	// and in a queue.
	handed     time.Time
	prev, next *entry
}

// latest holds the newest event of each container, in order. Every operation but all and
// forget(all) takes constant time: the events of deleted containers have a chain of their own, so
// that the oldest DELETED is found without a search.
type latest struct {
	entries         map[string]*entry // by container ID
	living, deleted chain             // each by rising seq
}

func newLatest() *latest { return &latest{entries: map[string]*entry{}} }

func (l *latest) len() int { return len(l.entries) }

// get returns nil for a container that has no event.
func (l *latest) get(id string) *entry { return l.entries[id] }

// put adds it, the newest event so far. replaced is true if it took the place of an older event of
// its container.
func (l *latest) put(it item) (replaced bool) {
	id := it.ev.GetContainerId()
	replaced = l.drop(id)
	e := &entry{item: it}
	l.entries[id] = e
	l.chainOf(e).push(e)
	return replaced
}

// drop removes the event of a container, if it has one.
func (l *latest) drop(id string) (had bool) {
	e := l.entries[id]
	if e != nil {
		l.remove(e)
	}
	return e != nil
}

func (l *latest) remove(e *entry) {
	delete(l.entries, e.ev.GetContainerId())
	l.chainOf(e).remove(e)
}

func (l *latest) chainOf(e *entry) *chain {
	if isDeletion(e.ev) {
		return &l.deleted
	}
	return &l.living
}

// isDeletion reports whether ev is the removal of its container.
func isDeletion(ev *runtimeapi.ContainerEventResponse) bool {
	return ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
}

// oldest returns nil if there is no event.
func (l *latest) oldest() *entry { return older(l.living.head, l.deleted.head) }

// evict removes and returns the event that can best be done without: the oldest DELETED, because a
// list shows that its container is gone, or else the oldest event.
func (l *latest) evict() *entry {
	e := l.deleted.head
	if e == nil {
		e = l.living.head
	}
	l.remove(e)
	return e
}

// forget removes events that were handed out before limit: at the heads of the chains, up to the
// first event that stays, or everywhere if all is true.
func (l *latest) forget(limit time.Time, all bool) {
	for _, c := range []*chain{&l.living, &l.deleted} {
		for e := c.head; e != nil; {
			next := e.next
			if !e.handed.IsZero() && e.handed.Before(limit) {
				l.remove(e)
			} else if !all {
				break
			}
			e = next
		}
	}
}

// all walks the entries in order. The walk must not change l.
func (l *latest) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		a, b := l.living.head, l.deleted.head
		for {
			e := older(a, b)
			if e == nil || !yield(e) {
				return
			}
			if e == a {
				a = a.next
			} else {
				b = b.next
			}
		}
	}
}

// older returns the entry with the lower seq. Either may be nil.
func older(a, b *entry) *entry {
	if a == nil || b != nil && b.seq < a.seq {
		return b
	}
	return a
}

// chain is a list of entries, by their own links.
type chain struct{ head, tail *entry }

func (c *chain) push(e *entry) {
	e.prev, e.next = c.tail, nil
	if c.tail == nil {
		c.head = e
	} else {
		c.tail.next = e
	}
	c.tail = e
}

func (c *chain) remove(e *entry) {
	if e.prev == nil {
		c.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		c.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}
