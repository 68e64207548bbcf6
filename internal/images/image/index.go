// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Image is an image with all its names. An attribute of one name, such as its size, is about the
// name that it was found by; if it was found by its ID, about the one that it has had for longest.
type Image struct {
	Stored
	Names         []Name   // all that the store has, also its ID and those that are wrong; sorted
	Tags, Digests []string // the names with a tag, and those with a digest; sorted
	Pins          []Pin    // why it is pinned; none if it is not
}

// Ref returns the repo digest of the name that the image was found by, else another one, else the
// ID.
func (i Image) Ref() string {
	for _, n := range i.NamesGiven() {
		if n.form == byDigest && slices.Contains(i.Digests, n.text) {
			return n.text
		}
	}
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return i.ID
}

// Title returns the name that a person knows the image by: its first tag, else its repo digest,
// else its ID.
func (i Image) Title() string {
	if len(i.Tags) > 0 {
		return i.Tags[0]
	}
	return i.Ref()
}

// as returns the image as one of its names has it.
func (i Image) as(st Stored) Image {
	st.Pinned, st.Created = i.Pinned, i.Created
	i.Stored = st
	return i
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
		x.byName[st.Name.text] = st
		x.link(st)
	}
	for id := range x.names {
		x.rebuild(id)
	}
	return x
}

// named finds an image by a name, which is not its ID.
func (x *index) named(name string) (Image, bool) {
	st, ok := x.byName[name]
	if !ok || st.Name.IsWrong() {
		return Image{}, false
	}
	return x.byID[st.ID].as(st), true
}

// put adds a name, or moves it to another image.
func (x *index) put(st Stored) {
	if old, ok := x.byName[st.Name.text]; ok && old.ID != st.ID {
		x.drop(st.Name.text)
	}
	x.byName[st.Name.text] = st
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
	x.names[st.ID][st.Name.text] = true
}

// rebuild puts an image together from its names.
func (x *index) rebuild(id string) {
	if len(x.names[id]) == 0 {
		delete(x.names, id)
		delete(x.byID, id)
		return
	}
	var all []Stored
	for name := range x.names[id] {
		all = append(all, x.byName[name])
	}
	slices.SortFunc(all, func(a, b Stored) int { return cmp.Compare(a.Name.text, b.Name.text) })
	i := Image{Stored: slices.MinFunc(all, compareAge)}
	labelled, created := false, time.Time{}
	for _, st := range all {
		labelled = labelled || st.Pinned
		if created.IsZero() || !st.Created.IsZero() && st.Created.Before(created) {
			created = st.Created
		}
		i.Names = append(i.Names, st.Name)
		switch st.Name.form {
		case byTag:
			i.Tags = append(i.Tags, st.Name.text)
		case byDigest:
			i.Digests = append(i.Digests, st.Name.text)
		case byID, wrong:
		}
	}
	i.Pins = x.pins.of(i, labelled)
	i.Pinned, i.Created = len(i.Pins) > 0, created
	x.byID[id] = i
}

// compareAge orders the names of an image by how much they have to say of it: references come
// first, and of these the ones that have been here for longest. So a name that comes later takes
// nothing over.
func compareAge(a, b Stored) int {
	rank := func(st Stored) int {
		switch st.Name.form {
		case byTag, byDigest:
			return 0
		case byID:
			return 1
		default:
			return 2
		}
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Created.Compare(b.Created), strings.Compare(a.Name.text, b.Name.text))
}
