// SPDX-License-Identifier: Apache-2.0

package image

import (
	"slices"
	"strings"
	"time"
)

// Image is an image with all its names.
type Image struct {
	Stored
	Tags, Digests []string // names with a tag, names with a digest; sorted
	Pins          []Pin    // why it is pinned; none if it is not
}

// Ref returns a repo digest where there is one, else the ID.
func (i Image) Ref() string {
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return i.ID
}

// Title returns the name that a person knows the image by: its first tag, else its first repo
// digest, else its ID.
func (i Image) Title() string {
	if len(i.Tags) > 0 {
		return i.Tags[0]
	}
	return i.Ref()
}

// index finds images by name and by ID. Its images are replaced when they change and never written
// to, so that readers may keep them.
type index struct {
	byName map[string]Stored
	byID   map[string]Image
	names  map[string]map[string]bool // of each ID
	pins   pins
}

func newIndex(all []Stored, p pins) index {
	x := index{
		byName: make(map[string]Stored, len(all)),
		byID:   map[string]Image{},
		names:  map[string]map[string]bool{},
		pins:   p,
	}
	for _, st := range all {
		x.byName[st.Name] = st
		x.link(st)
	}
	for id := range x.names {
		x.rebuild(id)
	}
	return x
}

// put adds a name, or moves it to another image.
func (x *index) put(st Stored) {
	if old, ok := x.byName[st.Name]; ok && old.ID != st.ID {
		x.drop(st.Name)
	}
	x.byName[st.Name] = st
	x.link(st)
	x.rebuild(st.ID)
}

func (x *index) drop(name string) {
	st, ok := x.byName[name]
	if !ok {
		return
	}
	delete(x.byName, name)
	delete(x.names[st.ID], name)
	x.rebuild(st.ID)
}

func (x *index) link(st Stored) {
	if x.names[st.ID] == nil {
		x.names[st.ID] = map[string]bool{}
	}
	x.names[st.ID][st.Name] = true
}

// rebuild puts an image together from its names.
func (x *index) rebuild(id string) {
	names := x.names[id]
	if len(names) == 0 {
		delete(x.names, id)
		delete(x.byID, id)
		return
	}
	var i Image
	var labelled bool
	var created time.Time
	for name := range names {
		st := x.byName[name]
		labelled = labelled || st.Pinned
		if created.IsZero() && !st.Created.IsZero() || !st.Created.IsZero() && st.Created.Before(created) {
			created = st.Created
		}
		if i.Name == "" || st.Name < i.Name { // the same one each time
			i.Stored = st
		}
		switch {
		case name == id:
		case strings.Contains(name, "@"):
			i.Digests = append(i.Digests, name)
		default:
			i.Tags = append(i.Tags, name)
		}
	}
	slices.Sort(i.Tags)
	slices.Sort(i.Digests)
	i.Pins = x.pins.of(i, names, labelled)
	i.Pinned, i.Created = len(i.Pins) > 0, created
	x.byID[id] = i
}
