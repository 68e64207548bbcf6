// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth/internal/base/event"
)

// Config says where a recorder writes, and whom it asks.
type Config struct {
	// Dir is the directory of the segments, which is made if it is absent. Empty: everything is in
	// memory alone, and Run need not be called.
	Dir string
	// MaxBytes is how much the segments may take together, and MaxAge how old an entry may get.
	MaxBytes int64
	MaxAge   time.Duration
	// Names returns the names of a sandbox or container whose entries do not have them. It may be
	// nil. It must not block, nor wait for a call of Find.
	Names func(id string) (event.Names, bool)
	// Seen returns the last that was seen of a container that has ended, what it has by the time that
	// ctx ends. It may be nil. It may be called several times at once, and nothing waits for it.
	Seen func(ctx context.Context, id string) Seen
	// Version and Boot are of this berth, for the entry about its start.
	Version, Boot string
	Log           *slog.Logger
}

const (
	// maxQueue is how many entries wait to become items.
	maxQueue = 8192
	// The latest items are kept in memory: so many and so many bytes, and beyond keepItems those
	// alone that are not on the disk.
	keepItems = 2048
	maxItems  = 16384
	maxBytes  = 16 << 20
)

// Recorder holds the entries. Its methods may be called from any goroutine.
type Recorder struct {
	cfg    Config
	opened time.Time
	first  uint64 // the number of the first entry of this recorder

	queue struct {
		sync.Mutex
		entries []event.Entry
		lost    losses
	}

	mu      sync.Mutex // guards what follows, and is not held while the disk is asked
	index   *index
	items   []item // the latest entries, by their numbers
	bytes   int    // of the items
	next    uint64 // the number of the next entry
	done    uint64 // what is below is written, or given up
	flying  uint64 // what is below is being written; 0: nothing is
	reason  error  // why the last write failed
	failing bool   // it did
	synced  uint64 // what is below is on the disk
	swept   uint64 // what is below was forgotten
	lost    losses
	ring    *ring

	poke    chan struct{} // there is something to write
	keep    chan keep
	ends    chan struct{} // a container has ended: what it used can be read for a moment
	crashes chan crash
	seeing  chan struct{}
	reading chan struct{}
	loaded  chan struct{} // closed once the ring was read
	began   chan struct{} // closed once the writer runs
	ended   chan struct{} // closed once it has ended
}

// item is an entry with its number, as it is stored.
type item struct {
	number  uint64
	at      time.Time
	payload []byte
}

// losses are entries that were dropped before they were written.
type losses struct {
	count    int
	from, to time.Time
}

func (l *losses) add(at time.Time) {
	if l.count == 0 {
		l.from = at
	}
	l.count, l.to = l.count+1, at
}

// Open opens the ring and reads its end. It never fails: what is wrong with the directory is logged,
// and tried again with each write. The caller runs the recorder and closes it.
func Open(cfg Config) *Recorder {
	r := &Recorder{
		cfg:     cfg,
		opened:  time.Now(),
		index:   newIndex(),
		next:    1,
		poke:    make(chan struct{}, 1),
		keep:    make(chan keep),
		ends:    make(chan struct{}, 1),
		crashes: make(chan crash, maxCrashes),
		seeing:  make(chan struct{}, maxSeeing),
		reading: make(chan struct{}, maxReading),
		loaded:  make(chan struct{}),
		began:   make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if r.cfg.Log == nil {
		r.cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		close(r.loaded)
		return r
	}
	r.ring = newRing(cfg.Dir, cfg.MaxBytes)
	if err := r.ring.open(); err != nil {
		r.cfg.Log.Warn("the history of before cannot be read", "dir", cfg.Dir, "err", err)
	}
	r.next = r.ring.next()
	r.first, r.done = r.next, r.next
	return r
}

// Add adds an entry. It takes a lock for less than a microsecond, and nothing else. The event must
// not be changed afterwards.
func (r *Recorder) Add(n event.Entry) {
	q := &r.queue
	q.Lock()
	if len(q.entries) >= maxQueue {
		q.lost.add(n.At)
	} else {
		q.entries = append(q.entries, n)
	}
	q.Unlock()
	signal(r.poke)
	if e, ok := n.Event.(event.ExitSettled); ok && e.Code != 0 {
		signal(r.ends)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reads the ring and writes what is added, until ctx ends. Close writes the rest. It returns
// within a second, also if the disk does not answer.
func (r *Recorder) Run(ctx context.Context) error {
	go r.lookInto(ctx)
	if r.ring == nil {
		for {
			select {
			case <-r.poke:
				r.mu.Lock()
				r.absorbLocked()
				r.mu.Unlock()
			case <-ctx.Done():
				return nil
			}
		}
	}
	go r.load()
	close(r.began)
	go func() {
		defer close(r.ended)
		r.write(ctx)
	}()
	<-ctx.Done()
	select {
	case <-r.ended:
	case <-time.After(closeTimeout):
	}
	return nil
}

// absorbLocked turns the entries that wait into items. r.mu must be held.
func (r *Recorder) absorbLocked() {
	r.queue.Lock()
	entries, lost := r.queue.entries, r.queue.lost
	r.queue.entries, r.queue.lost = nil, losses{}
	r.queue.Unlock()
	for _, n := range entries {
		r.appendLocked(n)
	}
	if lost.count > 0 {
		r.appendLocked(event.Entry{At: time.Now(), Event: event.EntriesLost{
			Count: lost.count,
			From:  lost.from,
			To:    lost.to,
			Err:   "more came at once than could be taken",
		}})
	}
	r.trimLocked()
}

// appendLocked makes an item of an entry. r.mu must be held.
func (r *Recorder) appendLocked(n event.Entry) {
	h := r.index.of(n.ID)
	if r.ring != nil {
		if written := r.ring.writes(); h.segment != written {
			h.segment, h.fresh = written, 0
			if left := h.left; left > 0 {
				h.left = 0
				r.appendLocked(event.Entry{At: n.At, ID: n.ID, Event: event.EntriesLeftOut{Count: left}})
			}
		}
		if h.fresh >= maxFresh && !lasting(n.Event) {
			h.left++
			return
		}
	}
	number := r.next
	if n.ID != "" && h.names == (event.Names{}) && r.cfg.Names != nil && len(h.numbers)%maxFirst == 0 {
		h.names, _ = r.cfg.Names(n.ID)
	}
	r.index.note(h, number, n.Event)
	payload, err := encode(n, h.names)
	if err != nil {
		r.cfg.Log.Warn("an entry of the history cannot be encoded", "kind", event.Kind(n.Event), "err", err)
		h.numbers = h.numbers[:len(h.numbers)-1]
		return
	}
	r.next++
	h.fresh++
	r.items = append(r.items, item{number, n.At, payload})
	r.bytes += len(payload)
	if h.crash() {
		r.reportLocked(h)
	}
}

const (
	// maxFresh is how many entries of one ID a segment takes, besides those that are lasting.
	maxFresh = 1000
	// maxFirst is how many entries of a history come between two questions for its names.
	maxFirst = 16
)

// lasting reports whether an event is kept however much happens.
func lasting(e event.Event) bool {
	switch e.(type) {
	case event.ExitSettled, event.ExitCorrected, event.ExitRecalled, event.ContainerCrashed, event.Removed,
		event.EntriesLost, event.EntriesLeftOut:
		return true
	}
	return false
}

// trimLocked drops the oldest items: those that are on the disk beyond a few, and those that are not
// where there are too many. r.mu must be held.
func (r *Recorder) trimLocked() {
	drop := 0
	var lost []item
	for drop < len(r.items) {
		first, left := r.items[drop], len(r.items)-drop
		onDisk := r.ring != nil && first.number < r.done
		if r.bytes <= maxBytes && (left <= keepItems || !onDisk && left <= maxItems) {
			break
		}
		if !onDisk && r.ring != nil && first.number >= r.flying {
			lost = append(lost, first)
		}
		r.bytes -= len(first.payload)
		drop++
	}
	if drop == 0 {
		return
	}
	r.items = slices.Clone(r.items[drop:])
	r.loseLocked(lost)
	if r.ring == nil {
		r.sweepLocked()
	}
}

// loseLocked counts items that were dropped and not written, and forgets them. r.mu must be held.
func (r *Recorder) loseLocked(items []item) {
	if len(items) == 0 {
		return
	}
	for _, it := range items {
		r.lost.add(it.at)
	}
	from, to := items[0].number, items[len(items)-1].number+1
	r.done = max(r.done, to)
	r.index.forget(from, to)
}

// sweepLocked forgets what can no longer be read. r.mu must be held.
func (r *Recorder) sweepLocked() {
	oldest := r.next
	if len(r.items) > 0 {
		oldest = r.items[0].number
	}
	if r.ring != nil {
		oldest = min(oldest, cmp.Or(r.ring.oldest(), oldest))
	}
	if oldest < r.swept+keepItems && r.ring == nil {
		return // not worth it yet
	}
	r.swept = oldest
	r.index.forget(0, oldest)
}

// Ended is an exit that is on record.
type Ended struct {
	ID    string
	Names event.Names
	Exit  event.Exit
}

// Recall adds the exits that are on record and that the history lacks, once the ring was read. It is
// called once, with the records that were there before berth started, and returns at once.
func (r *Recorder) Recall(ended []Ended) {
	go func() {
		<-r.loaded
		r.mu.Lock()
		defer r.mu.Unlock()
		r.absorbLocked()
		for _, e := range ended {
			h := r.index.of(e.ID)
			if h.exitAt != 0 && h.exit.Code == e.Exit.Code && h.exit.Measured == e.Exit.Measured {
				continue
			}
			if h.names == (event.Names{}) {
				h.names = e.Names
			}
			r.appendLocked(event.Entry{At: time.Now(), ID: e.ID, Event: event.ExitRecalled{Exit: e.Exit}})
		}
		signal(r.poke)
	}()
}
