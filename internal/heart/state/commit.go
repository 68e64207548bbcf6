// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"berth/internal/base/retry"
)

// Change is one write of a transaction.
type Change struct {
	kind   Kind
	id     string
	intent func() ([]byte, error) // nil: the intent does not change
	status *Status                // nil: the status does not change
	remove bool
}

// ID returns the ID of the record that the change is about.
func (ch Change) ID() string { return ch.id }

// Deletes reports whether the change deletes the record.
func (ch Change) Deletes() bool { return ch.remove }

// NewContainer writes a container's intent and its first status.
func NewContainer(c Container, s Status) Change {
	return Change{kind: KindContainer, id: c.ID, intent: c.encode, status: &s}
}

// NewSandbox writes a sandbox's intent and its first status.
func NewSandbox(sb Sandbox, s Status) Change {
	return Change{kind: KindSandbox, id: sb.ID, intent: sb.encode, status: &s}
}

// ContainerStatus replaces a container's status. Its record must exist.
func ContainerStatus(id string, s Status) Change {
	return Change{kind: KindContainer, id: id, status: &s}
}

// SandboxStatus replaces a sandbox's status. Its record must exist.
func SandboxStatus(id string, s Status) Change {
	return Change{kind: KindSandbox, id: id, status: &s}
}

// DeleteContainer deletes a container's record, damaged or not. An absent one is a success.
func DeleteContainer(id string) Change { return Change{kind: KindContainer, id: id, remove: true} }

// DeleteSandbox deletes a sandbox's record, damaged or not. An absent one is a success.
func DeleteSandbox(id string) Change { return Change{kind: KindSandbox, id: id, remove: true} }

// write is a Change as it goes into the database.
type write struct {
	Change
	intentJSON, statusJSON []byte // nil: does not change
}

func (ch Change) encode() (w write, err error) {
	w.Change = ch
	if ch.intent != nil {
		if w.intentJSON, err = ch.intent(); err != nil {
			return w, fmt.Errorf("encode the intent of %s %s: %w", ch.kind, ch.id, err)
		}
		w.intentJSON = seal(ch.kind, string(intentKey(ch.id)), w.intentJSON)
	}
	if ch.status != nil {
		if w.statusJSON, err = json.Marshal(ch.status); err != nil {
			return w, fmt.Errorf("encode the status of %s %s: %w", ch.kind, ch.id, err)
		}
		w.statusJSON = seal(ch.kind, string(statusKey(ch.id)), w.statusJSON)
	}
	return w, nil
}

// commit is one call of Commit.
type commit struct {
	writes []write
	err    error         // set by the transaction: this commit is refused, the others are not
	done   chan error    // buffered, so that the leader does not block on it
	lead   chan struct{} // buffered too: this call leads the next transaction
}

// Commit makes the changes in one transaction and returns nil once they are on disk. After an error
// nothing has changed. The error wraps errdefs.ErrNotFound if a status was to be written of a
// record that does not exist, as after its deletion, and errdefs.ErrUnavailable if the disk did not
// take it: see [Store.NotWritten].
//
// Concurrent calls share a transaction, which is one record of the journal: one of them leads it
// and writes for all that wait, then makes the first of those that came meanwhile the next leader.
func (s *Store) Commit(changes ...Change) error {
	c := &commit{done: make(chan error, 1), lead: make(chan struct{}, 1)}
	for _, ch := range changes {
		w, err := ch.encode()
		if err != nil {
			return fmt.Errorf("commit state %s: %w", s.path, err)
		}
		c.writes = append(c.writes, w)
	}
	s.mu.Lock()
	s.mu.waiting = append(s.mu.waiting, c)
	if s.mu.leading {
		s.mu.Unlock()
		select {
		case err := <-c.done:
			return err
		case <-c.lead:
		}
		s.mu.Lock()
	}
	s.mu.leading = true
	s.mu.Unlock()

	s.writing.Lock()
	s.mu.Lock()
	batch := s.mu.waiting
	s.mu.waiting = nil
	s.mu.Unlock()
	s.writes.begin()
	s.write(batch)
	s.writes.end()
	s.writing.Unlock()

	s.mu.Lock()
	if len(s.mu.waiting) > 0 {
		s.mu.waiting[0].lead <- struct{}{} // so that no call writes for others for ever
	} else {
		s.mu.leading = false
	}
	s.mu.Unlock()
	return <-c.done
}

// write commits a batch; s.writing is held. If that fails it commits each call by itself, so that
// the one that cannot be committed does not fail the others.
func (s *Store) write(batch []*commit) {
	defer func() {
		if p := recover(); p != nil {
			die(p, debug.Stack())
		}
	}()
	err := s.transaction(batch)
	for _, c := range batch {
		switch {
		case c.err != nil:
			c.done <- fmt.Errorf("commit state %s: %w", s.path, c.err)
		case err != nil && len(batch) > 1:
			c.done <- s.alone(c)
		default:
			c.done <- err
		}
	}
}

func (s *Store) alone(c *commit) error {
	if err := s.transaction([]*commit{c}); err != nil {
		return err
	}
	if c.err != nil {
		return fmt.Errorf("commit state %s: %w", s.path, c.err)
	}
	return nil
}

// dieTimeout is how long the stack of a panic may take to be written.
const dieTimeout = time.Second

// die ends the process with the stack of a panic. It does not return, so the commits that wait stay
// waiting: nothing may be written any more. It does not leave that to the Go runtime, which would
// wait for ever if standard error is not read.
func die(p any, stack []byte) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		// Not os.Stderr, because its buffered output may be lost when the process ends.
		_, _ = fmt.Fprintf(os.NewFile(2, "stderr"), "panic: commit state: %v\n\n%s", p, stack)
	}()
	retry.Sleep(written, dieTimeout)
	os.Exit(2) // as after any panic
}

// transaction writes the commits that are valid, and sets the error of those that are not.
func (s *Store) transaction(batch []*commit) error {
	var staged []entry
	err := s.db.View(func(tx *bbolt.Tx) error {
		v := view{tx: tx, log: &s.log, staged: map[name]bool{}}
		for _, c := range batch {
			var entries []entry
			if entries, c.err = v.stage(c); c.err == nil {
				staged = append(staged, entries...)
			}
		}
		return nil
	})
	if err == nil && len(staged) == 0 {
		return nil // there is nothing to be synced
	}
	if err == nil {
		err = s.put(staged)
	}
	if err != nil {
		err = fmt.Errorf("commit state %s: %w: %w", s.path, err, errdefs.ErrUnavailable)
	}
	s.writes.note(err)
	return err
}

// name names a record.
type name struct {
	kind Kind
	id   string
}

// view is the committed state together with the staged changes.
type view struct {
	tx     *bbolt.Tx
	log    *log
	staged map[name]bool // whether the record exists after the staged changes
}

func (v view) exists(n name) bool {
	if there, ok := v.staged[n]; ok {
		return there
	}
	if value, ok := v.log.get(entryKey{n.kind, string(intentKey(n.id))}); ok {
		return value != nil
	}
	return v.tx.Bucket(n.kind.bucket()).Get(intentKey(n.id)) != nil
}

// stage returns the entries that a commit writes. It refuses, before anything is written, a commit
// with a status that no intent belongs to, or one that is too large for the database.
func (v view) stage(c *commit) (entries []entry, err error) {
	exists := map[name]bool{} // by the earlier writes of this commit
	for _, w := range c.writes {
		n := name{w.kind, w.id}
		there, ok := exists[n]
		if !ok {
			there = v.exists(n)
		}
		there = (there || w.intentJSON != nil) && !w.remove
		if w.statusJSON != nil && !there {
			return nil, fmt.Errorf("write the status of %s %s: it has no record any more: %w", w.kind, w.id, errdefs.ErrNotFound)
		}
		if len(intentKey(w.id)) > bbolt.MaxKeySize || len(w.intentJSON)+len(w.statusJSON) > bbolt.MaxValueSize {
			return nil, fmt.Errorf("write %s %.100s: it is too long", w.kind, w.id)
		}
		exists[n] = there
		entries = append(entries, w.entries()...)
	}
	maps.Copy(v.staged, exists)
	return entries, nil
}

func (w write) entries() (entries []entry) {
	intent, status := string(intentKey(w.id)), string(statusKey(w.id))
	if w.remove {
		return []entry{{w.kind, intent, nil}, {w.kind, status, nil}}
	}
	if w.intentJSON != nil {
		entries = append(entries, entry{w.kind, intent, w.intentJSON})
	}
	if w.statusJSON != nil {
		entries = append(entries, entry{w.kind, status, w.statusJSON})
	}
	return entries
}
