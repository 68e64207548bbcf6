// SPDX-License-Identifier: Apache-2.0

package image

import (
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Pin is a reason why an image is pinned.
type Pin string

// The reasons why an image is pinned.
const (
	PinLabel   Pin = "label"         // containerd's label io.cri-containerd.pinned
	PinNeeded  Pin = "sandbox image" // pods need it besides the images of their containers
	PinConfig  Pin = "configuration" // image.pinned names it
	PinArchive Pin = "archive"       // it was imported from image.preload_dir
)

// pins are the images that are pinned besides those that containerd's label pins. It never changes.
type pins struct {
	needed   map[string]bool // by normalized name
	names    map[string]bool // by normalized name
	patterns []string
	ids      map[string]bool // by image ID: those that image.pinned names by their ID
	archives map[string]bool // by image ID: those of archives
}

// withNeeded returns pins with other names of images that pods need.
func (p pins) withNeeded(refs []string) pins {
	p.needed = map[string]bool{}
	for _, ref := range refs {
		if name, err := Normalize(ref); err == nil {
			p.needed[name] = true
		}
	}
	return p
}

// withConfigured returns pins with other references and patterns of the configuration. An entry
// that is neither a pattern nor a reference is left out: the configuration is checked before.
func (p pins) withConfigured(entries []string) pins {
	p.names, p.ids, p.patterns = map[string]bool{}, map[string]bool{}, nil
	for _, entry := range entries {
		if d, err := digest.Parse(entry); err == nil {
			p.ids[d.String()] = true
		} else if strings.Contains(entry, "*") {
			p.patterns = append(p.patterns, entry)
		} else if name, err := Normalize(entry); err == nil {
			p.names[name] = true
		}
	}
	return p
}

// withArchives returns pins with other images of archives.
func (p pins) withArchives(ids map[string]bool) pins {
	p.archives = ids
	return p
}

// of returns why an image is pinned.
func (p pins) of(i Image, labelled bool) []Pin {
	var why []Pin
	some := func(has func(name string) bool) bool {
		return slices.ContainsFunc(i.Tags, has) || slices.ContainsFunc(i.Digests, has)
	}
	if labelled {
		why = append(why, PinLabel)
	}
	if some(func(name string) bool { return p.needed[name] }) {
		why = append(why, PinNeeded)
	}
	if p.ids[i.ID] || some(func(name string) bool { return p.names[name] || p.matches(name) }) {
		why = append(why, PinConfig)
	}
	if p.archives[i.ID] {
		why = append(why, PinArchive)
	}
	return why
}

// matches reports whether a pattern matches a name, in full or as users write it.
func (p pins) matches(name string) bool {
	if len(p.patterns) == 0 {
		return false
	}
	forms := []string{name}
	if n, err := reference.ParseNormalizedNamed(name); err == nil {
		forms = append(forms, reference.FamiliarString(n))
	}
	return slices.ContainsFunc(p.patterns, func(pattern string) bool {
		return slices.ContainsFunc(forms, func(form string) bool { return glob(pattern, form) })
	})
}

// glob reports whether a pattern, in which * stands for any text, matches all of s.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, s, ok = strings.Cut(s, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(s, parts[last])
}

// SetPinned replaces the references and patterns of the configuration. The images that are here
// already are pinned, or are no longer pinned, when it returns.
func (l *loaded) SetPinned(entries []string) {
	l.pin(func(p pins) pins { return p.withConfigured(entries) })
}

// pinArchives replaces the images of archives that are pinned, by their IDs.
func (l *loaded) pinArchives(ids map[string]bool) {
	l.pin(func(p pins) pins { return p.withArchives(maps.Clone(ids)) })
}

func (l *loaded) pin(change func(pins) pins) {
	l.change(func(x *index) {
		x.pins = change(x.pins)
		for id := range x.names {
			x.rebuild(id)
		}
	})
}
