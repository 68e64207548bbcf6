// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
)

// index says which entries there are of each ID, and which containers crash. It is guarded by the
// lock of the recorder.
type index struct {
	byID   map[string]*history
	series map[string]series // by name
	steps  []uint64          // the numbers of settings of the clock, ascending
	well   map[string]bool   // names of which a container ended well, while older entries are read
}

// history is what is known of one ID without its entries.
type history struct {
	id      string
	names   event.Names // zero if they are not known
	numbers []uint64    // of the entries, ascending

	// Of what has happened so far:
	stop    bool       // a stop was requested
	exit    event.Exit // zero as long as it runs
	exitAt  uint64     // the number of the entry that has it
	crashed bool       // its crash is in a series

	// Of the segment that is written:
	segment uint64 // which one; the rest counts for this one alone
	fresh   int    // how many entries it has there
	left    int    // how many were left out
}

func newIndex() *index {
	return &index{byID: map[string]*history{}, series: map[string]series{}, well: map[string]bool{}}
}

// of returns the history of an ID, and makes it if it is absent.
func (x *index) of(id string) *history {
	h := x.byID[id]
	if h == nil {
		h = &history{id: id}
		x.byID[id] = h
	}
	return h
}

// note takes note of an entry.
func (x *index) note(h *history, number uint64, e event.Event) {
	h.numbers = append(h.numbers, number)
	if named, ok := e.(interface{ Of() event.Names }); ok {
		h.names = named.Of()
	}
	switch e := e.(type) {
	case event.StopRequested:
		h.stop = true
	case event.ClockSet:
		x.steps = append(x.steps, number)
	case event.ExitSettled:
		x.noteExit(h, number, e.Exit)
	case event.ExitCorrected:
		x.noteExit(h, number, e.Exit)
	case event.ExitRecalled:
		x.noteExit(h, number, e.Exit)
	case event.ContainerCrashed:
		h.crashed = true
		x.series[nameOf(e.Names)] = series{e, number, h.id}
	}
}

func (x *index) noteExit(h *history, number uint64, e event.Exit) {
	h.exit, h.exitAt = e, number
	if h.isContainer() && e.Measured && e.Code == 0 {
		delete(x.series, nameOf(h.names))
		x.well[nameOf(h.names)] = true
	}
}

// crash reports whether it has crashed, and is in no series yet.
func (h *history) crash() bool {
	e := h.exit
	return h.isContainer() && !h.crashed && !h.stop && e.Measured && e.Code != 0
}

// forget drops the entries from one number on and below another.
func (x *index) forget(from, to uint64) {
	x.steps = slices.DeleteFunc(x.steps, func(n uint64) bool { return from <= n && n < to })
	for id, h := range x.byID {
		i, _ := slices.BinarySearch(h.numbers, from)
		j, _ := slices.BinarySearch(h.numbers, to)
		switch {
		case i == j:
		case j-i == len(h.numbers):
			delete(x.byID, id)
		default:
			h.numbers = slices.Concat(h.numbers[:i], h.numbers[j:])
		}
	}
}

// merge adds what was read of the segments, all of which is older than what is here.
func (x *index) merge(older *index) {
	x.steps = slices.Concat(older.steps, x.steps)
	for id, old := range older.byID {
		h := x.byID[id]
		if h == nil {
			x.byID[id] = old
			continue
		}
		h.numbers = append(old.numbers, h.numbers...)
		if h.names == (event.Names{}) {
			h.names = old.names
		}
		if h.exitAt == 0 {
			h.exit, h.exitAt = old.exit, old.exitAt
		}
		h.stop = h.stop || old.stop
		h.crashed = h.crashed || old.crashed
	}
	for name, s := range older.series {
		if _, ok := x.series[name]; !ok && !x.well[name] {
			x.series[name] = s
		}
	}
	clear(x.well)
}

func (h *history) isContainer() bool { return h.names.Container != "" }

func (h *history) isPod() bool { return h.names.Pod != "" && h.names.Container == "" }

// last returns the number of the latest entry.
func (h *history) last() uint64 { return h.numbers[len(h.numbers)-1] }

// nameOf returns NAMESPACE/POD or NAMESPACE/POD/CONTAINER.
func nameOf(n event.Names) string { return n.Namespace + "/" + n.Name() }

// called reports whether a person may mean n by a word.
func called(n event.Names, word string) bool {
	if n.Pod == "" || word == "" {
		return false
	}
	return word == n.Name() || word == nameOf(n) || word == n.Container || n.Container == "" && word == n.UID
}

// samePod reports whether a and b are of one pod, or are that pod.
func samePod(a, b event.Names) bool {
	return a.Namespace == b.Namespace && a.Pod == b.Pod && a.Pod != ""
}

// find returns what a person means by a word: an ID or its beginning, a pod by its name,
// NAMESPACE/NAME or UID, or a container by its name, POD/NAME or NAMESPACE/POD/NAME. Of several
// with one name it is the one that something happened to last, and pods come before containers. It
// returns errdefs.ErrNotFound, and errdefs.ErrInvalidArgument when several IDs begin like that.
func (x *index) find(word string) (*history, error) {
	if h := x.byID[word]; h != nil && word != "" {
		return h, nil
	}
	var found *history
	for _, h := range x.byID {
		if !called(h.names, word) {
			continue
		}
		if found == nil || h.isPod() && !found.isPod() || h.isPod() == found.isPod() && h.last() > found.last() {
			found = h
		}
	}
	if found != nil {
		return found, nil
	}
	for id, h := range x.byID {
		if word == "" || !strings.HasPrefix(id, word) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("timeline of %q: several IDs begin with it: %w", word, errdefs.ErrInvalidArgument)
		}
		found = h
	}
	if found == nil {
		return nil, fmt.Errorf("timeline of %q: nothing is known of it: %w", word, errdefs.ErrNotFound)
	}
	return found, nil
}
