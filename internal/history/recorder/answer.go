// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/base/clock"
	"berth/internal/base/event"
)

const (
	// readTimeout is how long an answer waits for the disk.
	readTimeout = 2 * time.Second
	// maxReading is how many answers wait for it at once.
	maxReading = 4
	// maxAnswer is how many entries an answer has. Of more that is the last ones, or the first ones of
	// those since an instant.
	maxAnswer = 2000
)

// Entry is an event in words.
type Entry struct {
	Number uint64        `json:"number,omitempty"` // 0 for a gap
	At     clock.Instant `json:"at"`
	ID     string        `json:"id,omitempty"`
	Name   string        `json:"name,omitempty"` // NAMESPACE/POD or NAMESPACE/POD/CONTAINER
	Kind   string        `json:"kind,omitempty"` // of the event; "" for a gap
	By     event.Actor   `json:"by,omitempty"`
	What   string        `json:"what"`
	Detail string        `json:"detail,omitempty"`
	Err    string        `json:"error,omitempty"`

	Event event.Event `json:"-"` // nil for a gap, and for that of a newer berth
}

// Query says what is asked for.
type Query struct {
	// Of is an ID or its beginning, or a name: that of a pod, with or without its namespace, of a
	// container, or POD/CONTAINER. What is asked of a pod is answered with its containers. Empty:
	// everything that happened on the node.
	Of string
	// Attempts asks for all that had the same name, too.
	Attempts bool
	// Around asks for what may explain it, too: what happened to its pod, with all attempts, and to
	// the node itself.
	Around bool
	// Since leaves out what is older, and After what has no higher number. With Since an answer begins
	// there, and may have More.
	Since clock.Instant
	After uint64
}

// Answer is what is known.
type Answer struct {
	ID      string      `json:"id,omitempty"` // of what was meant; "" for the node
	Names   event.Names `json:"-"`
	Name    string      `json:"name,omitempty"`
	Entries []Entry     `json:"entries"` // oldest first
	Last    uint64      `json:"last"`    // the number to ask on after
	More    bool        `json:"more,omitempty"`

	// Of has the names of what the entries are about, by the ID.
	Of map[string]event.Names `json:"-"`
	// Series is what the containers have done since one of them ended well, by their names.
	Series map[string]event.ContainerCrashed `json:"-"`
}

// Find answers a question. It returns errdefs.ErrNotFound when nothing is known, and
// errdefs.ErrInvalidArgument when several IDs begin like that. What cannot be read in time is left
// out, and an entry says so.
func (r *Recorder) Find(ctx context.Context, q Query) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	select {
	case <-r.loaded:
	case <-ctx.Done():
	}
	r.mu.Lock()
	r.absorbLocked()
	meant, err := r.meantLocked(q)
	if err != nil {
		r.mu.Unlock()
		return Answer{}, err
	}
	a := Answer{Last: r.next - 1, Of: map[string]event.Names{}, Series: map[string]event.ContainerCrashed{}}
	if q.Of != "" {
		a.ID, a.Names = meant[0].id, meant[0].names
		if a.Names != (event.Names{}) {
			a.Name = nameOf(a.Names)
		}
	}
	var numbers []uint64
	for _, h := range meant {
		i, _ := slices.BinarySearch(h.numbers, q.After+1)
		numbers = append(numbers, h.numbers[i:]...)
		a.Of[h.id] = h.names
		if s, ok := r.index.series[nameOf(h.names)]; ok {
			a.Series[nameOf(h.names)] = s.crash
		}
	}
	slices.Sort(numbers)
	if q.Of != "" && !q.Around && len(numbers) > 0 { // a step of the clock explains the times of what is asked for
		i, _ := slices.BinarySearch(r.index.steps, max(numbers[0], q.After+1))
		numbers = append(numbers, r.index.steps[i:]...)
		slices.Sort(numbers)
	}
	left := 0
	if q.Since.IsZero() {
		left = max(0, len(numbers)-maxAnswer)
		numbers = numbers[left:]
	} else {
		if r.ring != nil {
			i, _ := slices.BinarySearch(numbers, r.ring.before(q.Since))
			numbers = numbers[i:]
		}
		if a.More = len(numbers) > maxAnswer; a.More {
			numbers = numbers[:maxAnswer]
			a.Last = numbers[maxAnswer-1]
		}
	}
	found := r.course.find(numbers)
	r.mu.Unlock()

	late := false
	if r.ring != nil {
		numbers := slices.DeleteFunc(slices.Clone(numbers), func(n uint64) bool { return found[n] != nil })
		older, err := r.read(ctx, r.ring.find(numbers))
		late = err != nil
		for n, payload := range older {
			found[n] = payload
		}
	}
	for _, n := range numbers {
		if e, ok := r.entryOf(n, found[n]); ok && !e.At.Before(q.Since) {
			if of := a.Of[e.ID]; of != (event.Names{}) {
				e.Name = nameOf(of)
			}
			a.Entries = append(a.Entries, e)
		}
	}
	slices.SortStableFunc(a.Entries, func(x, y Entry) int { return x.At.Compare(y.At) })
	gap := ""
	switch {
	case late:
		gap = "... what is older is on a disk that does not answer ..."
	case left > 0:
		gap = fmt.Sprintf("... %d older entries left out ...", left)
	}
	if gap != "" && q.After == 0 {
		g := Entry{At: r.opened, What: gap}
		if len(a.Entries) > 0 {
			g.At = a.Entries[0].At
		}
		a.Entries = slices.Insert(a.Entries, 0, g)
	}
	return a, nil
}

// meantLocked returns the histories that are asked for, that of the word first. r.mu must be held.
func (r *Recorder) meantLocked(q Query) (meant []*history, err error) {
	if q.Of == "" {
		for _, h := range r.index.byID {
			meant = append(meant, h)
		}
		return meant, nil
	}
	h, err := r.index.find(q.Of)
	if err != nil {
		return nil, err
	}
	meant = append(meant, h)
	for _, other := range r.index.byID {
		switch {
		case other == h:
		case h.isPod() && other.names.Sandbox == h.id,
			q.Attempts && h.isPod() && samePod(other.names, h.names),
			q.Attempts && h.isContainer() && nameOf(other.names) == nameOf(h.names),
			q.Around && (other.id == "" || samePod(other.names, h.names)):
			meant = append(meant, other)
		}
	}
	return meant, nil
}

// errBusy is the error where too many wait for the disk.
var errBusy = errors.New("too many answers wait for the disk")

// read reads records from the disk, until ctx ends.
func (r *Recorder) read(ctx context.Context, spans []span) (map[uint64][]byte, error) {
	if len(spans) == 0 {
		return nil, nil // there is nothing to read
	}
	if !r.reading.TryAcquire(1) {
		return nil, errBusy
	}
	done := make(chan map[uint64][]byte, 1)
	go func() {
		defer r.reading.Release(1)
		done <- read(spans)
	}()
	select {
	case found := <-done:
		return found, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// entryOf returns a payload in words.
func (r *Recorder) entryOf(number uint64, payload []byte) (Entry, bool) {
	var p stored
	if payload == nil || json.Unmarshal(payload, &p) != nil {
		return Entry{}, false
	}
	var n event.Entry
	switch err := json.Unmarshal(p.Entry, &n); {
	case errors.Is(err, event.ErrUnknown):
		return Entry{Number: number, At: n.At, ID: n.ID, What: "something that this version of berth has no words for"}, true
	case err != nil:
		return Entry{}, false
	}
	l := n.Shown(r.cfg.Clock).Line()
	return Entry{
		Number: number,
		At:     n.At,
		ID:     n.ID,
		Kind:   event.Kind(n.Event),
		By:     l.Actor,
		What:   l.Message,
		Detail: detail(l.Attrs),
		Err:    cut(l.Err),
		Event:  n.Event,
	}, true
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
