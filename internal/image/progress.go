// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Blob is one part of an image that a registry serves: a layer, or what describes the image.
type Blob struct {
	Digest string
	Size   int64 // in bytes
}

// Watch is notified of how a pull goes. Its functions may be called from any goroutine and do not
// block.
type Watch struct {
	// Bytes is called whenever bytes come, with how many, and with 0 when a request is answered
	// that is not for the rest of a blob.
	Bytes func(n int)
	// Unpacking is called when a layer is unpacked, and what it returns when that has ended. It may
	// be nil.
	Unpacking func() (done func())
	// Waiting is called when a layer that is unpacked waits for others to be unpacked first, and
	// what it returns when it waits no longer. It may be nil.
	Waiting func() (over func())
	// Needs is called with what the image consists of, as that becomes known, whether it is on this
	// node or has to be fetched.
	Needs func(blobs []Blob)
}

// Progress is how far the pulls of an image have come.
type Progress struct {
	// Total is the size of what the image consists of, in bytes, and Fetched how much of that is on
	// this node. Total is 0 as long as the registry has not said what the image consists of.
	Total   int64 `json:"total"`
	Fetched int64 `json:"fetched"`
	// Blobs and Complete count the parts, and those of them that are here as a whole.
	Blobs    int `json:"blobs"`
	Complete int `json:"complete"`
}

// progress holds what the images that are being pulled consist of, and how much of archives was
// read. The zero value is ready.
type progress struct {
	mu      sync.Mutex
	pulls   map[*pulling]bool
	imports map[string]Progress // by path
}

// pulling is one pull.
type pulling struct {
	name  string
	blobs map[string]Blob // by digest; guarded by progress.mu
}

// begin notes a pull. end must be called when it is over.
func (p *progress) begin(name string) (needs func([]Blob), end func()) {
	pull := &pulling{name, map[string]Blob{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulls == nil {
		p.pulls = map[*pulling]bool{}
	}
	p.pulls[pull] = true
	needs = func(more []Blob) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, b := range more {
			pull.blobs[b.Digest] = b
		}
	}
	return needs, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pulls, pull)
	}
}

// of returns what an image consists of, and whether it is being pulled.
func (p *progress) of(name string) (blobs []Blob, pulled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]Blob{}
	for pull := range p.pulls {
		if pull.name == name {
			pulled = true
			maps.Copy(all, pull.blobs)
		}
	}
	return slices.Collect(maps.Values(all)), pulled
}

// progressTimeout bounds the question how much of an image is here.
const progressTimeout = 2 * time.Second

// Progress returns how far the pulls of an image have come, or nil if it is not being pulled.
func (s *Service) Progress(ctx context.Context, ref string) (*Progress, error) {
	name, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	blobs, pulled := s.progress.of(name)
	if !pulled {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	here, err := s.backend.Fetched(ctx, blobs)
	if err != nil {
		return nil, fmt.Errorf("progress of pull %s: %w", name, err)
	}
	out := &Progress{Blobs: len(blobs)}
	for _, b := range blobs {
		n := min(here[b.Digest], b.Size)
		out.Total += b.Size
		out.Fetched += n
		if n == b.Size {
			out.Complete++
		}
	}
	return out, nil
}

// reading notes that an archive is imported. read is called with how many of its bytes were read,
// and end when the import is over.
func (p *progress) reading(path string) (read func(done, total int64), end func()) {
	read = func(done, total int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.imports == nil {
			p.imports = map[string]Progress{}
		}
		p.imports[path] = Progress{Total: total, Fetched: done}
	}
	return read, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.imports, path)
	}
}

// ImportProgress returns how many bytes of an archive were read, or nil if it is not being
// imported. All of it was read when its images are being unpacked.
func (s *Service) ImportProgress(path string) *Progress {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	if p, ok := s.progress.imports[path]; ok {
		return &p
	}
	return nil
}
