// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"container/list"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"berth/internal/event"
)

const (
	// maxIDs is how many IDs are remembered. The one that nothing happened to for longest goes
	// first.
	maxIDs = 2000
	// maxEntries is how many entries an ID has. The first maxFirst stay, and of the rest the
	// latest.
	maxEntries = 200
	maxFirst   = maxEntries / 4
	// maxText is the length of a detail or an error, in bytes.
	maxText = 2048
)

// Entry is an event in words.
type Entry struct {
	At     time.Time   `json:"at"`
	Kind   string      `json:"kind,omitempty"` // of the event; "" for a gap
	By     event.Actor `json:"by,omitempty"`
	What   string      `json:"what"`
	Detail string      `json:"detail,omitempty"`
	Err    string      `json:"error,omitempty"`
}

// Timeline holds the entries. Its methods may be called from any goroutine.
type Timeline struct {
	mu struct {
		sync.Mutex
		byID map[string]*list.Element
		used list.List // of *history, the one that was added to last first
	}
}

type history struct {
	id      string
	name    string // the last one that an entry gave it: POD, or POD/CONTAINER
	entries []Entry
	dropped int // after the first maxFirst
}

// New makes an empty timeline.
func New() *Timeline {
	t := &Timeline{}
	t.mu.byID = map[string]*list.Element{}
	return t
}

// Add adds an event. One that has a name gives the ID that name, too.
func (t *Timeline) Add(n event.Entry) {
	line := n.Line()
	e := Entry{
		At:     n.At,
		Kind:   event.Kind(n.Event),
		By:     line.Actor,
		What:   line.Message,
		Detail: detail(line.Attrs),
		Err:    cut(line.Err),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	el, ok := t.mu.byID[n.ID]
	if ok {
		t.mu.used.MoveToFront(el)
	} else {
		el = t.mu.used.PushFront(&history{id: n.ID})
		t.mu.byID[n.ID] = el
		if t.mu.used.Len() > maxIDs {
			old := t.mu.used.Remove(t.mu.used.Back()).(*history)
			delete(t.mu.byID, old.id)
		}
	}
	h := el.Value.(*history)
	if len(h.entries) >= maxEntries {
		h.entries = slices.Delete(h.entries, maxFirst, maxFirst+1)
		h.dropped++
	}
	h.entries = append(h.entries, e)
	if named, ok := n.Event.(interface{ Name() string }); ok {
		h.name = named.Name()
	}
}

func detail(attrs []slog.Attr) string {
	var d strings.Builder
	for i, a := range attrs {
		if i > 0 {
			d.WriteByte(' ')
		}
		d.WriteString(a.Key)
		d.WriteByte('=')
		d.WriteString(a.Value.String())
	}
	return cut(d.String())
}

// cut shortens a text that is too long.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) + "..."
}

// Of returns an ID and its entries, oldest first. The ID may be given by its beginning or by its
// name: that of a pod or a container, or POD/CONTAINER. Of several with one name it is the one that
// something happened to last. Of returns errdefs.ErrNotFound when nothing is known of it, and
// errdefs.ErrInvalidArgument when several IDs begin like that.
func (t *Timeline) Of(id string) (string, []Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	el, ok := t.mu.byID[id]
	if !ok {
		el, ok = t.namedLocked(id)
	}
	if !ok {
		for full, e := range t.mu.byID {
			if id != "" && strings.HasPrefix(full, id) {
				if ok {
					return "", nil, fmt.Errorf("timeline of %q: several IDs begin with it: %w", id, errdefs.ErrInvalidArgument)
				}
				el, ok = e, true
			}
		}
	}
	if !ok {
		return "", nil, fmt.Errorf("timeline of %q: nothing is known of it since berth started: %w", id, errdefs.ErrNotFound)
	}
	h := el.Value.(*history)
	if h.dropped == 0 {
		return h.id, slices.Clone(h.entries), nil
	}
	gap := Entry{
		At:   h.entries[maxFirst].At,
		What: fmt.Sprintf("... %d entries left out ...", h.dropped),
	}
	return h.id, slices.Concat(h.entries[:maxFirst], []Entry{gap}, h.entries[maxFirst:]), nil
}

// namedLocked finds what has a name. t.mu must be held.
func (t *Timeline) namedLocked(name string) (*list.Element, bool) {
	for el := t.mu.used.Front(); el != nil && name != ""; el = el.Next() {
		own := el.Value.(*history).name
		if _, container, _ := strings.Cut(own, "/"); own == name || container == name {
			return el, true
		}
	}
	return nil, false
}
