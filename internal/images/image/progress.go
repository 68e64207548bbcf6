// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/ops"
)

// Blob is one part of an image that a registry serves: a layer, a manifest or a configuration.
type Blob struct {
	Digest string
	Size   int64 // in bytes
}

// Sink is told how a pull goes. Its methods may be called from any goroutine and do not block,
// apart from Resolved.
type Sink interface {
	// Received is called whenever bytes come, with how many, and with 0 when a request is answered
	// that is not for the rest of a blob.
	Received(n int)
	// Needs is called with the parts of the image, as they become known, whether they are on this
	// node or have to be fetched.
	Needs(blobs []Blob)
	// Layer is called when a layer comes to a step of being unpacked.
	Layer(step LayerStep)
	// Resolved is called when the registry has resolved the name of the image, before any of it is
	// fetched, and perhaps once more if the pull begins anew. from is its registry, with the
	// credentials of the pull. An error ends the pull. It does wait.
	Resolved(ctx context.Context, target ocispec.Descriptor, from Registry) error
}

// LayerStep is a step of a layer that is being unpacked:
//
//	LayerBegins ──▶ LayerWaits ──▶ LayerGoesOn ──▶ LayerEnds
//
// A layer may end after any of them, and waits only while others are unpacked.
type LayerStep string

// The steps of a layer.
const (
	LayerBegins LayerStep = "begins"
	LayerWaits  LayerStep = "waits"
	LayerGoesOn LayerStep = "goes on"
	LayerEnds   LayerStep = "ends"
)

// change returns by how much a step changes the numbers of layers that are being unpacked and that
// wait for it.
func (s LayerStep) change() (unpacking, queued int) {
	switch s {
	case LayerBegins:
		return 1, 0
	case LayerWaits:
		return -1, 1
	case LayerGoesOn:
		return 1, -1
	case LayerEnds:
		return -1, 0
	}
	return 0, 0
}

// Progress is how far the pulls of an image have come.
type Progress struct {
	// Total is the size of the parts of the image, in bytes, and Fetched how much of them is on
	// this node. Total is 0 until the registry has listed the parts. Of an archive they are its
	// size and how much of it was read.
	Total   int64 `json:"total"`
	Fetched int64 `json:"fetched"`
	// Blobs and Complete count the parts, and those of them that are here as a whole. They are 0
	// for an archive.
	Blobs    int `json:"blobs"`
	Complete int `json:"complete"`
}

// The kinds of transfers.
const (
	KindPull    = "pull"    // from a registry
	KindImport  = "import"  // of an archive that somebody asked for
	KindPreload = "preload" // of an archive in image.preload_dir
)

// The states of transfers.
const (
	StateWaiting   = "waiting"   // for an archive that is being imported
	StateResolving = "resolving" // the registry has not listed the parts of the image
	StateFetching  = "fetching"
	StateUnpacking = "unpacking" // everything is here but the last layers' files
)

// Transfer is an image that is on its way to this node.
type Transfer struct {
	Image string    `json:"image"` // its name, or the path of the archive
	Kind  string    `json:"kind"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Progress
	// Came is how many bytes have come from the registry.
	Came int64 `json:"came"`
	// Unpacking and Queued count the layers whose files are being written, and those that wait
	// until other layers are.
	Unpacking int `json:"unpacking"`
	Queued    int `json:"queued"`
	// Waiters says who waits for it: the pods that pulls are for, as NAMESPACE/NAME, or another
	// word.
	Waiters []string `json:"waiters"`
	// Archive is the path of the archive that a pull waits for.
	Archive string `json:"archive,omitempty"`
	// Problem is the reason for which the number of bytes here is not known.
	Problem string `json:"problem,omitempty"`
}

// transfers are the pulls and imports in flight.
type transfers struct {
	list *ops.List // of the operations under way
	mu   sync.Mutex
	all  map[*transfer]bool
}

// transfer is one pull or import. Its parts are guarded by transfers.mu.
type transfer struct {
	in    *transfers
	op    *ops.Op
	kind  string
	name  string // of the image, or path of the archive
	key   pullKey
	since time.Time

	blobs     map[string]Blob // by digest
	read      Progress        // of an archive
	came      int64
	unpacking int
	queued    int
	archive   string // that it waits for
}

// begin notes a transfer, which is an operation under way. end must be called when it is over.
func (ts *transfers) begin(ctx context.Context, kind, name string, key pullKey) (context.Context, *transfer) {
	w := ops.Work{Kind: ops.Import, Of: ops.Object{Image: name}}
	if kind == KindPull {
		w.Kind = ops.Pull
	}
	ctx, op := ts.list.Part(ctx, w)
	t := &transfer{
		in:    ts,
		op:    op,
		kind:  kind,
		name:  name,
		key:   key,
		since: time.Now(),
		blobs: map[string]Blob{},
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.all == nil {
		ts.all = map[*transfer]bool{}
	}
	ts.all[t] = true
	return ctx, t
}

func (t *transfer) change(f func()) {
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	f()
}

func (t *transfer) end() {
	t.op.End()
	t.change(func() { delete(t.in.all, t) })
}

func (t *transfer) needs(more []Blob) {
	t.change(func() {
		for _, b := range more {
			t.blobs[b.Digest] = b
		}
	})
}

func (t *transfer) bytes(n int) { t.change(func() { t.came += int64(n) }) }

// received returns how many bytes have come.
func (t *transfer) received() (n int64) {
	t.change(func() { n = t.came })
	return n
}

// layers counts layers that are being unpacked, and those that wait for it.
func (t *transfer) layers(unpacking, queued int) {
	t.change(func() { t.unpacking, t.queued = t.unpacking+unpacking, t.queued+queued })
}

func (t *transfer) reads(done, total int64) {
	t.change(func() { t.read = Progress{Total: total, Fetched: done} })
}

func (t *transfer) waitsFor(archive string) { t.change(func() { t.archive = archive }) }

// of returns the parts of an image, and whether it is being pulled.
func (ts *transfers) of(name string) (blobs []Blob, pulled bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	all := map[string]Blob{}
	for t := range ts.all {
		if t.kind == KindPull && t.name == name {
			pulled = true
			maps.Copy(all, t.blobs)
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
	blobs, pulled := s.transfers.of(name)
	if !pulled {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	here, err := s.backend.Fetched(ctx, blobs)
	if err != nil {
		return nil, fmt.Errorf("progress of pull %s: %w", name, err)
	}
	p := sumUp(blobs, here)
	return &p, nil
}

// sumUp returns the progress of blobs, of which so many bytes are here.
func sumUp(blobs []Blob, here map[string]int64) Progress {
	out := Progress{Blobs: len(blobs)}
	for _, b := range blobs {
		n := min(here[b.Digest], b.Size)
		out.Total += b.Size
		out.Fetched += n
		if n == b.Size {
			out.Complete++
		}
	}
	return out
}

// ImportProgress returns how many bytes of an archive were read, or nil if it is not being
// imported. All of it was read when its images are being unpacked.
func (ts *transfers) ImportProgress(path string) *Progress {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.all {
		if t.kind != KindPull && t.name == path {
			p := t.read
			return &p
		}
	}
	return nil
}

// Transfers lists the pulls and imports in flight, the oldest first.
func (s *Service) Transfers(ctx context.Context) []Transfer {
	var list []Transfer
	var keys []pullKey
	var parts [][]Blob
	all := map[string]Blob{}
	s.transfers.mu.Lock()
	for t := range s.transfers.all {
		list = append(list, Transfer{
			Image:     t.name,
			Kind:      t.kind,
			Since:     t.since,
			Progress:  t.read,
			Came:      t.came,
			Unpacking: t.unpacking,
			Queued:    t.queued,
			Waiters:   []string{},
			Archive:   t.archive,
		})
		keys = append(keys, t.key)
		parts = append(parts, slices.Collect(maps.Values(t.blobs)))
		maps.Copy(all, t.blobs)
	}
	s.transfers.mu.Unlock()
	var here map[string]int64
	var err error
	if len(all) > 0 {
		ctx, cancel := context.WithTimeout(ctx, progressTimeout)
		defer cancel()
		here, err = s.backend.Fetched(ctx, slices.Collect(maps.Values(all)))
	}
	for n := range list {
		t := &list[n]
		if t.Kind == KindPull {
			t.Progress = sumUp(parts[n], here)
			t.Waiters = append(t.Waiters, s.pulls.who(keys[n])...)
			if err != nil {
				t.Problem = redact(err).Error()
			}
		}
		t.State = t.state()
	}
	slices.SortFunc(list, func(a, b Transfer) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Image, b.Image)
	})
	return list
}

// InFlight counts the transfers by their kind.
func (ts *transfers) InFlight() map[string]int {
	n := map[string]int{KindPull: 0, KindImport: 0, KindPreload: 0}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.all {
		n[t.kind]++
	}
	return n
}

func (t *Transfer) state() string {
	switch {
	case t.Archive != "":
		return StateWaiting
	case t.Total == 0:
		return StateResolving
	case t.Fetched < t.Total && t.Problem == "":
		return StateFetching
	case t.Problem != "" && t.Unpacking == 0:
		return StateFetching
	}
	return StateUnpacking
}
