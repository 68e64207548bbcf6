// SPDX-License-Identifier: Apache-2.0

package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"berth/internal/base/clock"
)

// Entry is an event with its time and its object.
type Entry struct {
	At clock.Instant
	// ID is the full ID of the sandbox or container, or "" for the node.
	ID    string
	Event Event
}

// Shown returns the entry with wall time, as c has it now, in place of each instant in it: for a
// person, or for a program that knows no instants.
func (n Entry) Shown(c *clock.Clock) Entry {
	if c.Plain() {
		return n
	}
	n.At = c.Shown(n.At)
	if n.Event != nil {
		e := reflect.New(reflect.TypeOf(n.Event)).Elem()
		e.Set(reflect.ValueOf(n.Event))
		show(e, c)
		n.Event = e.Interface().(Event)
	}
	return n
}

// show puts wall time in place of the instants in v, and copies the lists that have some.
func show(v reflect.Value, c *clock.Clock) {
	switch {
	case v.Type() == reflect.TypeFor[clock.Instant]():
		v.Set(reflect.ValueOf(c.Shown(v.Interface().(clock.Instant))))
	case v.Kind() == reflect.Struct:
		for n := range v.NumField() {
			if v.Type().Field(n).IsExported() {
				show(v.Field(n), c)
			}
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && !v.IsNil():
		list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(list, v)
		v.Set(list)
		for n := range v.Len() {
			show(v.Index(n), c)
		}
	}
}

// shortID is the length of an ID that people are shown, as crictl has it.
const shortID = 13

// Line returns the event in words. The ID of the entry is not in it, except shortened in the text
// of an error.
func (n Entry) Line() Line {
	l := n.Event.line()
	if len(n.ID) > shortID {
		l.Err = strings.ReplaceAll(l.Err, n.ID, n.ID[:shortID])
	}
	return l
}

// ErrUnknown is the error of [Entry.UnmarshalJSON] for an event of a kind that this berth does not
// have: a newer one wrote it.
var ErrUnknown = errors.New("unknown kind of event")

// entry is an Entry in JSON.
type entry struct {
	At    clock.Instant   `json:"at"`
	ID    string          `json:"id,omitempty"`
	Kind  string          `json:"kind"`
	Event json.RawMessage `json:"event"`
}

// MarshalJSON writes the entry with the kind of its event.
func (n Entry) MarshalJSON() ([]byte, error) {
	if n.Event == nil {
		return nil, errors.New("write an entry: it has no event")
	}
	raw, err := json.Marshal(n.Event)
	if err != nil {
		return nil, err
	}
	return json.Marshal(entry{n.At, n.ID, Kind(n.Event), raw})
}

// UnmarshalJSON decodes the output of MarshalJSON. After [ErrUnknown] the entry has its instant and
// its ID, and no event.
func (n *Entry) UnmarshalJSON(b []byte) error {
	var read entry
	if err := json.Unmarshal(b, &read); err != nil {
		return err
	}
	*n = Entry{At: read.At, ID: read.ID}
	t, ok := types[read.Kind]
	if !ok {
		return fmt.Errorf("read an entry: %w: %q", ErrUnknown, read.Kind)
	}
	e := reflect.New(t)
	if err := json.Unmarshal(read.Event, e.Interface()); err != nil {
		return fmt.Errorf("read an entry: %s: %w", read.Kind, err)
	}
	n.Event = e.Elem().Interface().(Event)
	return nil
}
