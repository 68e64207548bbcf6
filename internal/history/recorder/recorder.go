// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"berth/internal/base/clock"
	"berth/internal/base/event"
)

// Config says where a recorder writes, and whom it asks.
type Config struct {
	// Clock makes the instants of the recorder's own entries, and their age; nil: that of this
	// process.
	Clock *clock.Clock
	// Dir is the directory of the segments, which is made if it is absent. Empty: everything is in
	// memory alone, and Run need not be called.
	Dir string
	// MaxBytes is how much the segments may take together, and MaxAge how old an entry may
	// get: only time that the node has lived counts.
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

// maxQueue is how many entries wait to become items.
const maxQueue = 8192

// Recorder holds the entries. Its methods may be called from any goroutine.
type Recorder struct {
	cfg    Config
	opened clock.Instant
	ring   *ring // nil if everything is in memory alone

	queue struct {
		sync.Mutex
		entries []event.Entry
		lost    losses
	}

	mu      sync.Mutex // guards what follows, and is not held while the disk is asked
	course  course
	index   *index
	next    uint64  // the number of the next entry
	crashes []crash // to be looked into

	failing atomic.Pointer[string] // why the history is in memory alone; nil: it is not

	added   chan struct{} // an entry was added
	waiting chan struct{} // an entry waits to be written
	keep    chan keep
	loaded  chan struct{} // closed once the ring was read

	seeing  *semaphore.Weighted // questions for what a container was last
	reading *semaphore.Weighted // answers that wait for the disk
}

// InMemory returns why the history is in memory alone and lost with this process, or "".
func (r *Recorder) InMemory() string {
	if why := r.failing.Load(); why != nil {
		return *why
	}
	if r.ring == nil {
		return "timeline.max_mib is 0"
	}
	return ""
}

// Open opens the ring and reads its end. It never fails: what is wrong with the directory is
// logged, and tried again with each write. The caller runs the recorder and closes it.
func Open(cfg Config) *Recorder {
	if cfg.Clock == nil {
		cfg.Clock = clock.New(nil)
	}
	r := &Recorder{
		cfg:     cfg,
		opened:  cfg.Clock.Now(),
		index:   newIndex(),
		next:    1,
		course:  course{at: stageMemory},
		added:   make(chan struct{}, 1),
		waiting: make(chan struct{}, 1),
		keep:    make(chan keep),
		loaded:  make(chan struct{}),
		seeing:  semaphore.NewWeighted(maxSeeing),
		reading: semaphore.NewWeighted(maxReading),
	}
	if r.cfg.Log == nil {
		r.cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		close(r.loaded)
		return r
	}
	r.ring = newRing(cfg.Dir, cfg.MaxBytes, cfg.Clock)
	if err := r.ring.open(); err != nil {
		r.cfg.Log.Warn("the history of before cannot be read", "dir", cfg.Dir, "err", err)
	}
	r.next, r.course.at = r.ring.next(), stageOpened
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
	signal(r.added)
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
	ended := make(chan struct{})
	if r.ring == nil {
		close(ended)
	} else {
		r.move(stageIdle)
		go r.load(r.ring.next())
		go func() {
			defer close(ended)
			r.write(ctx)
		}()
	}
	r.listen(ctx)
	select {
	case <-ended:
	case <-time.After(closeTimeout):
	}
	return nil
}

// listen takes in what is added, until ctx ends. It never waits for the disk: what a container used
// that has crashed can be read for a moment only.
func (r *Recorder) listen(ctx context.Context) {
	for {
		select {
		case <-r.added:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		r.absorbLocked()
		crashes := r.crashes
		r.crashes = nil
		r.mu.Unlock()
		signal(r.waiting)
		for _, c := range crashes {
			// Each is looked into by itself, because the log of one may take its time.
			go func() { r.addCrash(c, r.See(ctx, c.id)) }()
		}
	}
}

func (r *Recorder) move(to stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.course.move(to)
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
		r.appendLocked(event.Entry{At: r.cfg.Clock.Now(), Event: event.EntriesLost{
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
	r.course.add(item{number, n.At, payload})
	r.reportLocked(h)
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

// trimLocked drops the items that memory does not hold. r.mu must be held.
func (r *Recorder) trimLocked() {
	before := len(r.course.items)
	if lost := r.course.trim(); len(lost) > 0 {
		r.index.forget(lost[0].number, lost[len(lost)-1].number+1)
	}
	if r.ring == nil && len(r.course.items) < before {
		r.sweepLocked()
	}
}

// sweepLocked forgets what can no longer be read. r.mu must be held.
func (r *Recorder) sweepLocked() {
	oldest := r.next
	if len(r.course.items) > 0 {
		oldest = r.course.items[0].number
	}
	if r.ring != nil {
		oldest = min(oldest, cmp.Or(r.ring.oldest(), oldest))
	}
	r.index.forget(0, oldest)
}

// Ended is an exit that is on record.
type Ended struct {
	ID    string
	Names event.Names
	Exit  event.Exit
}

// Recall adds the exits that are on record and that the history lacks, once the ring was read. It
// is called once, with the records that were there before berth started, and returns at once.
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
			r.appendLocked(event.Entry{At: r.cfg.Clock.Now(), ID: e.ID, Event: event.ExitRecalled{Exit: e.Exit}})
		}
		signal(r.added)
	}()
}
