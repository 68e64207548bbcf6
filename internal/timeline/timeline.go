// SPDX-License-Identifier: Apache-2.0

// Package timeline remembers, in memory and bounded, what happened to each sandbox and container, for a person to
// read: also to those that were removed lately.
//
// It never decides anything; whoever tells it never waits.
package timeline

import (
	"container/list"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

const (
	maxIDs     = 2000 // the least recently told of go first
	maxEntries = 200  // per ID; the first quarter stays, of the rest the latest
)

// Entry is one thing that happened.
type Entry struct {
	At     time.Time `json:"at"`
	What   string    `json:"what"`
	Detail string    `json:"detail,omitempty"`
	Err    string    `json:"error,omitempty"`
}

// Timeline holds the entries. Its methods may be called from any goroutine.
type Timeline struct {
	mu struct {
		sync.Mutex
		byID map[string]*list.Element
		used list.List // of *history, latest first
	}
}

type history struct {
	id      string
	entries []Entry
	dropped int
}

// New makes an empty timeline.
func New() *Timeline {
	t := &Timeline{}
	t.mu.byID = map[string]*list.Element{}
	return t
}

// Add remembers an entry. fields are key and value in turn.
func (t *Timeline) Add(id string, at time.Time, what string, err error, fields ...any) {
	e := Entry{At: at, What: what}
	var d strings.Builder
	for i := 0; i+1 < len(fields); i += 2 {
		fmt.Fprintf(&d, " %v=%v", fields[i], fields[i+1])
	}
	e.Detail = strings.TrimPrefix(d.String(), " ")
	if err != nil {
		e.Err = err.Error()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	el, ok := t.mu.byID[id]
	if !ok {
		el = t.mu.used.PushFront(&history{id: id})
		t.mu.byID[id] = el
		if t.mu.used.Len() > maxIDs {
			old := t.mu.used.Remove(t.mu.used.Back()).(*history)
			delete(t.mu.byID, old.id)
		}
	} else {
		t.mu.used.MoveToFront(el)
	}
	h := el.Value.(*history)
	if len(h.entries) >= maxEntries {
		h.entries = append(h.entries[:maxEntries/4], h.entries[maxEntries/4+1:]...)
		h.dropped++
	}
	h.entries = append(h.entries, e)
}

// Of returns the entries of an ID, or of the one whose ID begins so. ErrNotFound when nothing is known.
func (t *Timeline) Of(id string) (string, []Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	el, ok := t.mu.byID[id]
	if !ok {
		for full, e := range t.mu.byID {
			if id != "" && strings.HasPrefix(full, id) {
				if ok {
					return "", nil, fmt.Errorf("timeline of %q: several IDs begin so: %w", id, errdefs.ErrInvalidArgument)
				}
				el, ok = e, true
			}
		}
	}
	if !ok {
		return "", nil, fmt.Errorf("timeline of %q: nothing is known of it since berth started: %w", id, errdefs.ErrNotFound)
	}
	h := el.Value.(*history)
	out := append([]Entry(nil), h.entries...)
	if h.dropped > 0 {
		out = append(out[:maxEntries/4:maxEntries/4], append([]Entry{{At: out[maxEntries/4].At, What: fmt.Sprintf("... %d entries left out ...", h.dropped)}}, out[maxEntries/4:]...)...)
	}
	return h.id, out, nil
}
