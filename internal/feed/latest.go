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
	heard      time.Time // when it was handed to a subscriber that it was new to; zero: never. For the feed's memory only
	prev, next *entry
}

// latest holds the newest event of each container, in order. Every operation but all and forget(all)
// takes constant time: those of deleted containers are chained apart, so that the oldest DELETED
// is found without a search.
type latest struct {
	entries         map[string]*entry // by container ID
	living, deleted chain             // each by rising seq
}

func newLatest() *latest { return &latest{entries: map[string]*entry{}} }

func (l *latest) len() int { return len(l.entries) }

// get returns nil for a container that is not there.
func (l *latest) get(id string) *entry { return l.entries[id] }

// put adds it, which is newer than all that is there. replaced says that an older event of its container went.
func (l *latest) put(it item) (replaced bool) {
	id := it.ev.GetContainerId()
	if old := l.entries[id]; old != nil {
		l.remove(old)
		replaced = true
	}
	e := &entry{item: it}
	l.entries[id] = e
	l.chainOf(e).push(e)
	return replaced
}

func (l *latest) remove(e *entry) {
	delete(l.entries, e.ev.GetContainerId())
	l.chainOf(e).remove(e)
}

func (l *latest) chainOf(e *entry) *chain {
	if e.ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		return &l.deleted
	}
	return &l.living
}

// oldest returns nil when nothing is there.
func (l *latest) oldest() *entry { return older(l.living.head, l.deleted.head) }

// evict removes and returns what is missed least: the oldest DELETED, whose container a list
// does not show any more either, else the oldest.
func (l *latest) evict() *entry {
	e := l.deleted.head
	if e == nil {
		e = l.living.head
	}
	l.remove(e)
	return e
}

// forget removes what was handed out before limit: from the head of each chain as far as there
// is nothing else, or wherever it is.
func (l *latest) forget(limit time.Time, all bool) {
	for _, c := range []*chain{&l.living, &l.deleted} {
		for e := c.head; e != nil; {
			next := e.next
			if !e.heard.IsZero() && e.heard.Before(limit) {
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

// older is the one with the lower seq; nil is no entry.
func older(a, b *entry) *entry {
	if a == nil || b != nil && b.seq < a.seq {
		return b
	}
	return a
}

// chain is a list of entries through their own links.
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
