// SPDX-License-Identifier: Apache-2.0

package image

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// loaded has the images that clients are told of, read from the store into memory. Its methods may
// be called from any goroutine, and none of them waits.
type loaded struct {
	arrivals arrivals // images that are not here yet

	mu struct {
		sync.RWMutex
		index index
	}
}

func newLoaded(p pins) *loaded {
	l := &loaded{}
	l.mu.index = newIndex(nil, p)
	return l
}

// change changes the index.
func (l *loaded) change(f func(x *index)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.mu.index)
}

// images returns all images, the one that has been here for longest first.
func (l *loaded) images() []Image {
	l.mu.RLock()
	all := slices.Collect(maps.Values(l.mu.index.byID))
	l.mu.RUnlock()
	slices.SortFunc(all, func(a, b Image) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// withChain returns an image with that chain ID.
func (l *loaded) withChain(chainID string) (Image, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, i := range l.mu.index.byID {
		if i.ChainID == chainID {
			return i, true
		}
	}
	return Image{}, false
}

// sources returns a name of each target that claims to have the layers of an image, those of the
// image itself first. The ID of a layer is that of its content, whichever blob it comes from, and
// the blobs of one target may be missing, or have another content.
func (l *loaded) sources(i Image) []Name {
	names := append([]Name{i.Name}, i.Names...)
	l.mu.RLock()
	for id, other := range l.mu.index.byID {
		if id != i.ID && other.ChainID == i.ChainID {
			names = append(names, other.Names...)
		}
	}
	l.mu.RUnlock()
	var out []Name
	for _, n := range names {
		if !slices.ContainsFunc(out, func(o Name) bool { return o.target.Digest == n.target.Digest }) {
			out = append(out, n)
		}
	}
	return out
}

// have reports whether images with these IDs are all here.
func (l *loaded) have(ids []string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return !slices.ContainsFunc(ids, func(id string) bool { _, ok := l.mu.index.byID[id]; return !ok })
}
