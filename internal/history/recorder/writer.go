// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"berth/internal/base/clock"
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

// keep asks for all that was added before to be put onto the disk, and gets the answer.
type keep chan error

// write writes what is added until ctx ends. No other goroutine writes to the ring meanwhile.
func (r *Recorder) write(ctx context.Context) {
	defer r.move(stageEnded)
	age := time.NewTicker(hourly)
	defer age.Stop()
	wait := time.NewTimer(0)
	defer wait.Stop()
	failed := false
	for {
		var waits []keep
		select {
		case <-r.waiting:
			// Others come at the same time, mostly. A removal that waits for the disk does not wait
			// for them.
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
		r.move(stageBusy)
		err := r.flush()
		for more := true; more; {
			select {
			case k := <-r.keep:
				waits = append(waits, k)
			default:
				more = false
			}
		}
		kept := err
		if len(waits) > 0 && err == nil {
			kept = r.ring.sync()
		}
		for _, k := range waits {
			k <- kept
		}
		r.failing.Store(nil)
		if err != nil {
			why := err.Error()
			r.failing.Store(&why)
		}
		switch {
		case err != nil && !failed:
			r.cfg.Log.Warn("the history cannot be written, it goes on in memory", "dir", r.cfg.Dir, "err", err)
		case err == nil && failed:
			r.cfg.Log.Info("the history is written again", "dir", r.cfg.Dir)
		}
		if failed = err != nil; !failed {
			r.move(stageIdle)
			continue
		}
		r.move(stageFailing)
		wait.Reset(again)
		select {
		case <-wait.C:
			signal(r.waiting)
		case <-ctx.Done():
			return
		}
	}
}

// flush writes all that was added, and drops what is too much or too old.
func (r *Recorder) flush() error {
	for {
		some, turned, err := r.put()
		if err != nil {
			return err
		}
		if turned || !some {
			r.drop()
		}
		if !some {
			return nil
		}
	}
}

// put writes a batch. It reports whether there was one, and whether a segment was begun with it.
func (r *Recorder) put() (some, turned bool, err error) {
	r.mu.Lock()
	r.absorbLocked()
	batch := r.course.take()
	r.mu.Unlock()
	if len(batch) == 0 {
		return false, false, nil
	}
	turned, err = r.ring.append(batch, r.cfg.MaxAge)
	r.mu.Lock()
	defer r.mu.Unlock()
	why := cmp.Or(r.course.reason, errSlow)
	r.course.took(err)
	if lost := r.course.lost; lost.count > 0 && err == nil {
		r.course.lost = losses{}
		r.appendLocked(event.Entry{At: r.cfg.Clock.Now(), Event: event.EntriesLost{
			Count: lost.count,
			From:  lost.from,
			To:    lost.to,
			Err:   why.Error(),
		}})
	}
	r.trimLocked()
	return true, turned, err
}

// errSlow is why entries are lost if no write has failed.
var errSlow = errors.New("the disk did not answer")

// drop drops segments while there is too much, once the series of crashes are known.
func (r *Recorder) drop() {
	for r.isLoaded() {
		next, ok := r.ring.excess(r.cfg.MaxAge)
		if !ok {
			return
		}
		r.mu.Lock()
		r.carryLocked(next, r.ring.size/2)
		r.mu.Unlock()
		for some := true; some; { // before the segment goes that has it
			var err error
			if some, _, err = r.put(); err != nil {
				return // it is tried again
			}
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

// Keep returns once the exit of a container or sandbox, if there is one, is on the disk. It is
// called before the record is deleted that has it as well. It waits for a second at most, and not
// at all while the disk fails. An error says that a power cut may lose the exit from the history.
func (r *Recorder) Keep(ctx context.Context, id string) error {
	r.mu.Lock()
	r.absorbLocked()
	at, failed, exitAt := r.course.at, r.course.reason, uint64(0)
	if h := r.index.byID[id]; h != nil {
		exitAt = h.exitAt
	}
	r.mu.Unlock()
	switch {
	case at == stageMemory || at == stageOpened || at == stageEnded:
		return nil
	case failed != nil:
		return fmt.Errorf("put the exit of %s into the history: %w", id, failed)
	case exitAt == 0 || r.ring.has(exitAt):
		return nil
	}
	k := make(keep, 1)
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	select {
	case r.keep <- k:
	case <-ctx.Done():
		return fmt.Errorf("put the exit of %s into the history: %w", id, ctx.Err())
	}
	select {
	case err := <-k:
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
	r.mu.Lock()
	if r.course.at == stageOpened {
		r.course.move(stageEnded)
	}
	at := r.course.at
	r.mu.Unlock()
	if at != stageEnded {
		return fmt.Errorf("write the history to %s: the disk does not answer", r.cfg.Dir)
	}
	r.Add(event.Entry{At: r.cfg.Clock.Now(), Event: event.BerthStopped{}})
	closed := make(chan error, 1)
	go func() { closed <- errors.Join(r.flush(), r.ring.sync(), r.ring.close()) }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTimeout):
		return fmt.Errorf("write the history to %s: the disk does not answer", r.cfg.Dir)
	}
}

// load reads the ring, from its oldest segment on, and adds the entry about this start. first is
// the first number that this recorder writes.
func (r *Recorder) load(first uint64) {
	past := past{index: newIndex(), said: map[string]bool{}}
	var unread []event.HistoryUnread
	for _, s := range r.ring.all() {
		if s.first >= first {
			break // the writer has made it meanwhile
		}
		got := segment{path: s.path, first: s.first}
		err := got.scan(func(number uint64, payload []byte) {
			if number < first {
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
		r.reportLocked(h)
	}
	signal(r.added)
}

// past is what is learnt from the ring.
type past struct {
	index   *index
	started event.BerthStarted // the last time
	stopped bool               // and it has ended well
	// shutDown is set if the machine was shut down after that.
	shutDown bool
	said     map[string]bool // the files that were said to be unreadable
}

// note takes note of an entry, and returns its instant.
func (p *past) note(number uint64, payload []byte) clock.Instant {
	n, of, ok := peek(payload)
	if !ok {
		return clock.Instant{}
	}
	h := p.index.of(n.ID)
	if of != (event.Names{}) {
		h.names = of
	}
	p.index.note(h, number, n.Event)
	switch e := n.Event.(type) {
	case event.BerthStarted:
		p.started, p.stopped, p.shutDown = e, false, false
	case event.MachineShutDown:
		p.shutDown = true
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
	case p.started.Boot != boot && p.shutDown:
		return event.AfterShutdown
	case p.started.Boot != boot:
		return event.AfterReboot
	case p.stopped:
		return event.AfterStop
	}
	return event.AfterKill
}

// peek reads as much of a payload as the index needs: the event alone of the kinds that it looks
// at.
func peek(payload []byte) (n event.Entry, of event.Names, ok bool) {
	var p stored
	var head struct {
		At   clock.Instant `json:"at"`
		ID   string        `json:"id"`
		Kind string        `json:"kind"`
	}
	if json.Unmarshal(payload, &p) != nil || json.Unmarshal(p.Entry, &head) != nil {
		return event.Entry{}, event.Names{}, false
	}
	switch head.Kind {
	case "StopRequested", "ExitSettled", "ExitCorrected", "ExitRecalled", "ContainerCrashed",
		"BerthStarted", "BerthStopped", "MachineShutDown", "HistoryUnread", "ClockSet":
		_ = n.UnmarshalJSON(p.Entry) // one of a newer berth has no event
	}
	n.At, n.ID = head.At, head.ID
	return n, p.Of, true
}
