// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/base/event"
)

const (
	// gather is how long the writer waits for more entries before it writes. It is much less than
	// the second that is promised.
	gather = 100 * time.Millisecond
	// again is how long it waits after an error of the disk.
	again = time.Second
	// hourly is how often it looks for segments that are too old.
	hourly = time.Hour
	// maxBatch is how much is written at once, in bytes.
	maxBatch = 256 << 10
	// keepTimeout is how long a removal waits for the disk, and closeTimeout the end of berth.
	keepTimeout  = time.Second
	closeTimeout = time.Second
)

// keep asks for all entries below a number to be put onto the disk.
type keep struct {
	below uint64
	done  chan error // buffered
}

// write writes what is added until ctx ends. No other goroutine writes to the ring meanwhile.
func (r *Recorder) write(ctx context.Context) {
	age := time.NewTicker(hourly)
	defer age.Stop()
	wait := time.NewTimer(0)
	defer wait.Stop()
	failing := false
	for {
		var waits []keep
		select {
		case <-r.poke:
			// Others come at the same time, mostly. Whoever waits for the disk does not wait for them.
			wait.Reset(gather)
			select {
			case <-wait.C:
			case k := <-r.keep:
				waits = append(waits, k)
			case <-ctx.Done():
				return
			}
		case k := <-r.keep:
			waits = append(waits, k)
		case <-age.C:
		case <-ctx.Done():
			return
		}
		err := r.flush()
		for more := true; more; {
			select {
			case k := <-r.keep:
				waits = append(waits, k)
			default:
				more = false
			}
		}
		if len(waits) > 0 {
			r.answer(waits, err)
		}
		if failing != (err != nil) {
			failing = err != nil
			if failing {
				r.cfg.Log.Warn("the history cannot be written, it goes on in memory", "dir", r.cfg.Dir, "err", err)
			} else {
				r.cfg.Log.Info("the history is written again", "dir", r.cfg.Dir)
			}
		}
		if failing {
			wait.Reset(again)
			select {
			case <-wait.C:
				signal(r.poke)
			case <-ctx.Done():
				return
			}
		}
	}
}

// flush writes all that was added, and drops what is too much or too old.
func (r *Recorder) flush() error {
	for {
		batch := r.batch()
		if len(batch) == 0 {
			break
		}
		turned, err := r.ring.append(batch, r.cfg.MaxAge)
		r.written(batch, err)
		if err != nil {
			return err
		}
		if turned {
			r.drop()
		}
	}
	r.drop()
	return nil
}

// batch returns what is to be written next.
func (r *Recorder) batch() (batch []item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.absorbLocked()
	size := 0
	for _, it := range r.items {
		if it.number < r.done {
			continue
		}
		if size += len(it.payload); size > maxBatch && len(batch) > 0 {
			break
		}
		batch = append(batch, it)
		r.flying = it.number + 1
	}
	return batch
}

// written takes note of what became of a batch.
func (r *Recorder) written(batch []item, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flying = 0
	if err != nil {
		n := slices.IndexFunc(batch, func(it item) bool {
			return len(r.items) > 0 && it.number >= r.items[0].number
		})
		if n < 0 {
			n = len(batch)
		}
		r.loseLocked(batch[:n]) // memory did not hold them meanwhile
		r.reason, r.failing = err, true
		return
	}
	r.failing = false
	r.done = max(r.done, batch[len(batch)-1].number+1)
	if r.lost.count > 0 {
		why := "the disk did not answer"
		if r.reason != nil {
			why = r.reason.Error()
		}
		r.appendLocked(event.Entry{At: time.Now(), Event: event.EntriesLost{
			Count: r.lost.count,
			From:  r.lost.from,
			To:    r.lost.to,
			Err:   why,
		}})
		r.lost = losses{}
	}
	r.reason = nil
	r.trimLocked()
}

// drop drops segments while there is too much, once the series of crashes are known.
func (r *Recorder) drop() {
	select {
	case <-r.loaded:
	default:
		return
	}
	for {
		next, ok := r.ring.excess(r.cfg.MaxAge)
		if !ok {
			return
		}
		r.mu.Lock()
		r.carryLocked(next, r.ring.size/2)
		r.mu.Unlock()
		if err := r.carried(); err != nil {
			return // it is tried again
		}
		if err := r.ring.drop(); err != nil {
			r.cfg.Log.Warn("a segment of the history cannot be deleted", "err", err)
			return
		}
		r.mu.Lock()
		r.sweepLocked()
		r.mu.Unlock()
	}
}

// carried writes what is carried over before the segment goes that has it.
func (r *Recorder) carried() error {
	for {
		batch := r.batch()
		if len(batch) == 0 {
			return nil
		}
		_, err := r.ring.append(batch, r.cfg.MaxAge)
		r.written(batch, err)
		if err != nil {
			return err
		}
	}
}

// answer syncs the ring for those who wait for it, and answers them.
func (r *Recorder) answer(waits []keep, err error) {
	r.mu.Lock()
	upTo := r.done
	need := false
	for _, k := range waits {
		need = need || k.below > r.synced
	}
	r.mu.Unlock()
	if need && err == nil {
		if err = r.ring.sync(); err == nil {
			r.mu.Lock()
			r.synced = max(r.synced, upTo)
			r.mu.Unlock()
		}
	}
	for _, k := range waits {
		k.done <- err
	}
}

// Keep returns once the exit of a container or sandbox, if there is one, is on the disk. It is called
// before the record is deleted that has it as well. It waits for a second at most, and not at all
// while the disk fails. An error says that a power cut may lose the exit from the history.
func (r *Recorder) Keep(ctx context.Context, id string) error {
	if r.ring == nil {
		return nil
	}
	select {
	case <-r.began:
	default:
		return nil
	}
	r.mu.Lock()
	r.absorbLocked()
	h := r.index.byID[id]
	if r.failing {
		err := r.reason
		r.mu.Unlock()
		return fmt.Errorf("put the exit of %s into the history: %w", id, err)
	}
	if h == nil || h.exitAt == 0 || h.exitAt < r.synced {
		r.mu.Unlock()
		return nil
	}
	k := keep{h.exitAt + 1, make(chan error, 1)}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	select {
	case r.keep <- k:
	case <-ctx.Done():
		return fmt.Errorf("put the exit of %s into the history: %w", id, ctx.Err())
	}
	select {
	case err := <-k.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("put the exit of %s into the history: %w", id, ctx.Err())
	}
}

// Close writes what is left, within a bound. Run has returned, or was never called.
func (r *Recorder) Close() error {
	if r.ring == nil {
		return nil
	}
	select {
	case <-r.began:
		select {
		case <-r.ended:
		default:
			return fmt.Errorf("write the history to %s: the disk does not answer", r.cfg.Dir)
		}
	default:
	}
	r.Add(event.Entry{At: time.Now(), Event: event.BerthStopped{}})
	closed := make(chan error, 1)
	go func() { closed <- errors.Join(r.flush(), r.ring.sync(), r.ring.close()) }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTimeout):
		return fmt.Errorf("write the history to %s: the disk does not answer", r.cfg.Dir)
	}
}

// load reads the ring, from its oldest segment on, and adds the entry about this start.
func (r *Recorder) load() {
	past := past{index: newIndex(), said: map[string]bool{}}
	var unread []event.HistoryUnread
	for _, s := range r.ring.all() {
		if s.first >= r.first {
			break // the writer has made it meanwhile
		}
		got := segment{path: s.path, first: s.first}
		err := got.scan(func(number uint64, payload []byte) {
			if number < r.first {
				got.newest = past.note(number, payload)
			}
			if got.began.IsZero() {
				got.began = got.newest
			}
		})
		r.ring.learn(s, &got)
		if err != nil && !s.whole && !errors.Is(err, fs.ErrNotExist) {
			unread = append(unread, event.HistoryUnread{File: filepath.Base(s.path), Err: err.Error()})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.absorbLocked()
	r.index.merge(past.index)
	close(r.loaded)
	for _, u := range unread {
		if !past.said[u.File] {
			r.appendLocked(event.Entry{At: r.opened, Event: u})
		}
	}
	r.appendLocked(event.Entry{At: r.opened, Event: event.BerthStarted{
		Version: r.cfg.Version,
		Boot:    r.cfg.Boot,
		After:   past.after(r.cfg.Boot),
	}})
	for _, h := range r.index.byID { // what a kill kept from being looked into
		if h.crash() {
			r.reportLocked(h)
		}
	}
	signal(r.poke)
}

// past is what is learnt from the ring.
type past struct {
	index   *index
	started event.BerthStarted // the last time
	stopped bool               // and it has ended well
	said    map[string]bool    // the files that were said to be unreadable
}

// note takes note of an entry, and returns its instant.
func (p *past) note(number uint64, payload []byte) time.Time {
	n, of, ok := peek(payload)
	if !ok {
		return time.Time{}
	}
	h := p.index.of(n.ID)
	if of != (event.Names{}) {
		h.names = of
	}
	p.index.note(h, number, n.Event)
	switch e := n.Event.(type) {
	case event.BerthStarted:
		p.started, p.stopped = e, false
	case event.BerthStopped:
		p.stopped = true
	case event.HistoryUnread:
		p.said[e.File] = true
	}
	return n.At
}

// after returns how the berth before ended.
func (p *past) after(boot string) string {
	switch {
	case p.started.Boot == "":
		return ""
	case p.started.Boot != boot:
		return event.AfterReboot
	case p.stopped:
		return event.AfterStop
	}
	return event.AfterKill
}

// peek reads as much of a payload as the index needs: the event alone of the kinds that it looks at.
func peek(payload []byte) (n event.Entry, of event.Names, ok bool) {
	var p stored
	var head struct {
		At   time.Time `json:"at"`
		ID   string    `json:"id"`
		Kind string    `json:"kind"`
	}
	if json.Unmarshal(payload, &p) != nil || json.Unmarshal(p.Entry, &head) != nil {
		return event.Entry{}, event.Names{}, false
	}
	switch head.Kind {
	case "StopRequested", "ExitSettled", "ExitCorrected", "ExitRecalled", "ContainerCrashed",
		"BerthStarted", "BerthStopped", "HistoryUnread":
		_ = n.UnmarshalJSON(p.Entry) // one of a newer berth has no event
	}
	n.At, n.ID = head.At, head.ID
	return n, p.Of, true
}
