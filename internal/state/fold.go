// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
)

// Keys of the bucket meta while there is a journal.
var (
	keyEpoch  = []byte("journal-epoch")
	keyFolded = []byte("journal-folded")
)

// log is what was committed since the database was written last.
//
//	closed ── the first commit goes into the database, and begins an epoch ──▶ open
//	  ▲                                                                         │
//	  └────────────── Close brings what is pending into the database ───────────┘
//
// While it is open, a commit is a record of the journal. When the journal is half full, what is
// pending goes into the database (it is folded), and the journal begins anew. What the journal
// cannot take (it is full, or its disk fails) goes into the database together with all that is
// pending. A journal whose disk failed is tried again after a while, once all that was tried is in
// the database: so no record follows one of which nobody knows whether it is on disk.
type log struct {
	journal *journal // nil: there is none, and every commit goes into the database
	open    bool
	broken  bool                // the journal could not be written the last time
	retryAt time.Time           // when it is written again, if it is broken
	number  uint64              // of the last record, written or tried
	folded  uint64              // of the last record that is in the database
	pending map[entryKey][]byte // what the journal has and the database has not; nil: deleted
	folding bool                // somebody is about to fold beside the commits
}

type entryKey struct {
	kind Kind
	key  string
}

func (l *log) add(entries []entry) {
	for _, e := range entries {
		l.pending[entryKey{e.kind, e.key}] = e.value
	}
}

// journalRetry is how long the journal is left alone after its disk failed.
const journalRetry = time.Second

// takes reports whether the next record may go into the journal.
func (l *log) takes() bool {
	if !l.open || !l.broken {
		return l.open
	}
	return l.folded == l.number && !time.Now().Before(l.retryAt)
}

func (l *log) close() error {
	j := l.journal
	if l.journal = nil; j == nil {
		return nil
	}
	return j.Close()
}

// restore opens the journal and reads what is in it and not in the database. Of a database that was
// closed nothing is in it, whatever it says. Then a journal that cannot be made or opened is not an
// error: the store works without one.
func (s *Store) restore() error {
	s.log.pending = map[entryKey][]byte{}
	open, of, folded, err := s.readMeta()
	if err != nil {
		return err
	}
	path, err := journalPath(s.path)
	if err != nil {
		return err
	}
	j, err := openJournal(path, !open)
	switch {
	case err != nil && !open:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: what was committed last is in its journal %s, which is not there", ErrDamaged, path)
	case err != nil:
		return fmt.Errorf("open the journal: %w", err)
	}
	s.log.journal, s.log.open, j.epoch = j, open, of
	if !open {
		return nil
	}
	payloads, last, err := j.replay(folded)
	if err != nil {
		return err
	}
	for _, p := range payloads {
		entries, err := decodeEntries(p)
		if err != nil {
			return err
		}
		s.log.add(entries)
	}
	s.log.number, s.log.folded = last, folded
	return nil
}

// journalPath is beside the database itself, on the same disk, where the path of that is a link.
func journalPath(db string) (string, error) {
	db, err := filepath.EvalSymlinks(db)
	return filepath.Join(filepath.Dir(db), "berth.journal"), err
}

// readMeta reads whether a journal belongs to the database, of which epoch, and up to which record
// it is in the database.
func (s *Store) readMeta() (open bool, of epoch, folded uint64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if open = string(meta.Get(keyVersion)) != strconv.Itoa(versionClosed); !open {
			return nil
		}
		n, err := hex.Decode(of[:], meta.Get(keyEpoch)[:min(len(meta.Get(keyEpoch)), 2*len(of))])
		if err != nil || n != len(of) {
			return fmt.Errorf("%w: it does not say which journal belongs to it", ErrDamaged)
		}
		if folded, err = strconv.ParseUint(string(meta.Get(keyFolded)), 10, 64); err != nil {
			return fmt.Errorf("%w: it does not say how much of its journal is in it", ErrDamaged)
		}
		return nil
	})
	return open, of, folded, err
}

// put makes entries durable, and then part of what is committed. s.writing is held.
func (s *Store) put(entries []entry) error {
	l := &s.log
	if !l.takes() {
		return s.fold(false, entries...)
	}
	err := l.journal.append(l.number+1, encodeEntries(nil, entries))
	if err != nil && !errors.Is(err, errFull) {
		// The record may be on disk. Its number is used up: once what is committed instead is in
		// the database under that number, the record does not count.
		l.broken, l.retryAt = true, time.Now().Add(journalRetry)
		l.number++
	}
	if err != nil {
		if ferr := s.fold(false, entries...); ferr != nil {
			if l.broken {
				return errors.Join(err, ferr)
			}
			return ferr
		}
		return nil
	}
	l.broken = false
	l.number++
	l.add(entries)
	if l.journal.at >= journalSize/2 && !l.folding {
		l.folding = true
		s.folding.Go(s.foldBeside)
	}
	return nil
}

// foldBeside brings what is pending into the database while nobody waits for it. If that fails, it
// is tried again when the journal is full.
func (s *Store) foldBeside() {
	defer func() {
		if p := recover(); p != nil {
			die(p, debug.Stack())
		}
	}()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.log.folding = false
	_ = s.fold(false)
}

// fold brings what is pending and more into the database, in one transaction. After it the journal
// is empty. The first one begins an epoch, and one that closes ends it. With an error nothing has
// changed. s.writing is held.
func (s *Store) fold(closing bool, more ...entry) error {
	l := &s.log
	if len(more) == 0 && !l.open {
		return nil
	}
	begins := !l.open && l.journal != nil
	var next epoch
	if begins {
		_, _ = rand.Read(next[:]) // never fails
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for k, v := range l.pending {
			if err := apply(tx, entry{k.kind, k.key, v}); err != nil {
				return err
			}
		}
		for _, e := range more {
			if err := apply(tx, e); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		switch {
		case closing:
			return errors.Join(meta.Delete(keyEpoch), meta.Delete(keyFolded), meta.Put(keyVersion, []byte(strconv.Itoa(versionClosed))))
		case begins:
			return errors.Join(meta.Put(keyVersion, []byte(strconv.Itoa(Version))),
				meta.Put(keyEpoch, hex.AppendEncode(nil, next[:])), meta.Put(keyFolded, []byte("0")))
		case l.open:
			return meta.Put(keyFolded, strconv.AppendUint(nil, l.number, 10))
		}
		return nil
	})
	if err != nil {
		return err
	}
	clear(l.pending)
	switch {
	case closing:
		l.open = false
	case begins:
		l.open, l.number, l.journal.epoch = true, 0, next
	}
	l.folded = l.number
	if l.journal != nil {
		l.journal.at = 0
	}
	return nil
}

func apply(tx *bbolt.Tx, e entry) error {
	b := tx.Bucket(e.kind.bucket())
	var err error
	if e.value == nil {
		err = b.Delete([]byte(e.key))
	} else {
		err = b.Put([]byte(e.key), e.value)
	}
	if err != nil {
		return fmt.Errorf("write %s %s: %w", e.kind, e.key, err)
	}
	return nil
}
