// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Keys of the bucket meta while there is a journal.
var (
	keyEpoch  = []byte("journal-epoch")
	keyFolded = []byte("journal-folded")
)

// log holds the commits since the database was last written.
//
//	closed ── the first commit goes into the database, and begins an epoch ──▶ open
//	  ▲                                                                         │
//	  └────────────── Close brings what is pending into the database ───────────┘
//
// While it is open, a commit is a record in one half of the journal. When that half is full it is
// sealed: the commits go on in the other half, while the entries of the sealed one go into the
// database beside them (it is folded). So a commit waits for a fold only if a whole half is filled
// meanwhile. If the journal cannot take a commit (both halves are full, the record is larger than a
// half, or its disk fails), it goes into the database together with all sealed and pending entries.
// A journal whose disk failed is tried again after a while, once all that was tried is in the
// database: so no record follows one that may or may not be on disk.
type log struct {
	journal *journal // nil: there is none, and every commit goes into the database
	open    bool
	older   bool      // an earlier berth wrote the journal: it has no halves, and is not written
	broken  bool      // the journal could not be written the last time
	retryAt time.Time // when it is written again, if it is broken
	number  uint64    // of the last record, written or tried
	folded  uint64    // of the last record that is known to be in the database
	pending values    // entries that are in the current half and not in the database
	sealed  values    // the same of the other half; nil: all of that is in the database
	seal    uint64    // the number of the last record that is sealed
	folding bool      // a goroutine is about to fold the sealed entries
}

// values are new values of keys; nil deletes a key.
type values map[entryKey][]byte

type entryKey struct {
	kind Kind
	key  string
}

func (v values) add(entries []entry) {
	for _, e := range entries {
		v[entryKey{e.kind, e.key}] = e.value
	}
}

// get returns the value of a key among the entries that are not in the database, and whether it has
// one.
func (l *log) get(key entryKey) (value []byte, ok bool) {
	if value, ok = l.pending[key]; !ok {
		value, ok = l.sealed[key]
	}
	return value, ok
}

// turn seals the half that is written and goes on in the other one, of which nothing is sealed.
func (l *log) turn() {
	l.sealed, l.seal, l.pending = l.pending, l.number, values{}
	l.journal.turn()
}

// journalRetry is how long the journal is left alone after its disk failed.
const journalRetry = time.Second

// takes reports whether the next record may go into the journal.
func (l *log) takes() bool {
	if !l.open || l.older || l.journal.readOnly {
		return false
	}
	if !l.broken {
		return true
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

// restore opens the journal and reads the entries that are not in the database. The journal of a
// database that was closed is ignored. Then a journal that cannot be made or opened is not an
// error: the store works without one. The readable entries of a damaged journal go into the
// database at once, and the next commit begins the journal anew.
func (s *Store) restore(openFile opener) error {
	l := &s.log
	l.pending = values{}
	m, err := s.readMeta()
	if errors.Is(err, ErrDamaged) {
		s.salvage.Lost = append(s.salvage.Lost, fmt.Sprintf("%s: %v, and the records that only its journal had", s.path, err))
		m, err = meta{version: versionClosed}, nil
	}
	if err != nil {
		return err
	}
	path, err := journalPath(s.path)
	if err != nil {
		return err
	}
	j, err := openJournal(path, !m.open, openFile)
	if err != nil && !m.open {
		return nil
	}
	damage := Salvage{}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		damage.Lost = append(damage.Lost, fmt.Sprintf("%s: %v, and the last commits", s.path, err))
		j, err = openPart(path, openFile)
	}
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	l.journal, l.open, l.older, j.epoch = j, m.open, m.open && m.version < Version, m.epoch
	if !m.open {
		return nil
	}
	records, more, err := j.replay(m.folded)
	if err != nil {
		return err
	}
	damage.Mended, damage.Lost = damage.Mended+more.Mended, append(damage.Lost, more.Lost...)
	l.number, l.folded = m.folded, m.folded
	for _, r := range records {
		entries, err := decodeEntries(r.payload)
		if err != nil {
			damage.Lost = append(damage.Lost, fmt.Sprintf("%s: record %d: %v", path, r.number, err))
		}
		if r.at/halfSize != j.half && !l.older {
			if l.sealed == nil {
				l.sealed = values{}
			}
			l.sealed.add(entries)
			l.seal = r.number
		} else {
			l.pending.add(entries)
		}
		l.number = r.number
	}
	if damage.Damaged() {
		s.renew(path, openFile, damage)
	}
	return nil
}

// renew brings the readable entries of a damaged journal into the database, and keeps the journal
// beside it. If that fails, the next commit tries again.
func (s *Store) renew(path string, openFile opener, damage Salvage) {
	l := &s.log
	s.salvage.Mended += damage.Mended
	s.salvage.Lost = append(s.salvage.Lost, damage.Lost...)
	if err := s.fold(true); err != nil {
		l.older = true
		return
	}
	kept := path + ".damaged"
	if err := os.Rename(path, kept); err == nil {
		s.salvage.Kept = append(s.salvage.Kept, kept)
	}
	_ = l.close()
	if j, err := openJournal(path, true, openFile); err == nil {
		l.journal = j
	}
}

// openPart opens an incomplete journal for reading alone, as if it were complete: the missing part
// is zero. One that is absent is empty.
func openPart(path string, openFile opener) (*journal, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &journal{device: part(append(b, make([]byte, journalSize)...)), path: path, openFile: openFile, readOnly: true}, nil
}

// part is the readable part of a journal.
type part []byte

func (p part) ReadAt(b []byte, at int64) (int, error) { return copy(b, p[at:]), nil }
func (p part) WriteAt([]byte, int64) (int, error)     { return 0, unix.EROFS }
func (p part) Close() error                           { return nil }

// journalPath returns the path of the journal. It is beside the database itself, on the same disk,
// even if the path of the database is a link.
func journalPath(db string) (string, error) {
	db, err := filepath.EvalSymlinks(db)
	return filepath.Join(filepath.Dir(db), "berth.journal"), err
}

// meta is the database's information about its journal.
type meta struct {
	version int
	open    bool // a journal belongs to it
	epoch   epoch
	folded  uint64 // the record up to which the journal is in the database
}

func (s *Store) readMeta() (m meta, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		m, err = metaOf(tx)
		return err
	})
	return m, err
}

func metaOf(tx *bbolt.Tx) (m meta, err error) {
	b := tx.Bucket(bucketMeta)
	m.version = versionOf(b)
	if m.open = m.version != versionClosed; !m.open {
		return m, nil
	}
	n, err := hex.Decode(m.epoch[:], b.Get(keyEpoch)[:min(len(b.Get(keyEpoch)), 2*len(m.epoch))])
	if err != nil || n != len(m.epoch) {
		return m, fmt.Errorf("%w: the ID of its journal is missing", ErrDamaged)
	}
	if m.folded, err = strconv.ParseUint(string(b.Get(keyFolded)), 10, 64); err != nil {
		return m, fmt.Errorf("%w: the number of its last folded journal record is missing", ErrDamaged)
	}
	return m, nil
}

// put makes entries durable, and then visible. s.writing is held.
func (s *Store) put(entries []entry) error {
	l := &s.log
	if !l.takes() {
		return s.fold(false, entries...)
	}
	payload := encodeEntries(nil, entries)
	err := l.journal.append(l.number+1, payload)
	if errors.Is(err, errFull) && l.sealed == nil {
		l.turn()
		err = l.journal.append(l.number+1, payload)
	}
	if err != nil && !errors.Is(err, errFull) {
		// The record may be on disk. Its number is used up: once another commit is in the database
		// under that number, the record does not count.
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
	l.pending.add(entries)
	if l.sealed != nil && !l.folding {
		l.folding = true
		s.folding.Go(s.foldBeside)
	}
	return nil
}

// errDone ends a transaction that has nothing to do.
var errDone = errors.New("it is in the database")

// foldBeside brings the sealed entries into the database while no commit waits for it. If that
// fails, it is tried again after the next commit.
func (s *Store) foldBeside() {
	defer func() {
		if p := recover(); p != nil {
			die(p, debug.Stack())
		}
	}()
	l := &s.log
	s.writing.Lock()
	sealed, to := l.sealed, l.seal // immutable from here on
	s.writing.Unlock()
	err := s.db.Update(func(tx *bbolt.Tx) error {
		// A commit may have folded everything meanwhile, newer entries included.
		if m, err := metaOf(tx); err != nil || !m.open || m.folded >= to {
			return cmp.Or(err, errDone)
		}
		return errors.Join(s.apply(tx, sealed), putFolded(tx, to), putCheck(tx))
	})
	s.writing.Lock()
	defer s.writing.Unlock()
	l.folding = false
	if err == nil {
		s.counted.Store(true)
	}
	if err == nil && l.seal == to {
		l.sealed, l.folded = nil, max(l.folded, to)
	}
}

// fold brings the sealed and pending entries, and more, into the database, in one transaction.
// After it the journal is empty. The first one begins an epoch, and one that closes ends it. With
// an error nothing has changed. s.writing is held.
func (s *Store) fold(closing bool, more ...entry) error {
	l := &s.log
	if len(more) == 0 && !l.open {
		return nil
	}
	begins := (!l.open || l.older) && l.journal != nil && !closing
	var next epoch
	if begins {
		_, _ = rand.Read(next[:]) // never fails
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		latest := values{}
		latest.add(more)
		if err := s.apply(tx, l.sealed, l.pending, latest); err != nil {
			return err
		}
		meta := tx.Bucket(bucketMeta)
		var err error
		switch {
		case closing:
			err = errors.Join(meta.Delete(keyEpoch), meta.Delete(keyFolded), meta.Put(keyVersion, []byte(strconv.Itoa(versionClosed))))
		case begins:
			err = errors.Join(meta.Put(keyVersion, []byte(strconv.Itoa(Version))),
				meta.Put(keyEpoch, hex.AppendEncode(nil, next[:])), putFolded(tx, 0))
		case l.open:
			err = putFolded(tx, l.number)
		}
		return errors.Join(err, putCheck(tx))
	})
	if err != nil {
		return err
	}
	s.counted.Store(true)
	clear(l.pending)
	l.sealed = nil
	switch {
	case closing:
		l.open = false
	case begins:
		l.open, l.older, l.number, l.journal.epoch = true, false, 0, next
	}
	l.folded = l.number
	if l.journal != nil {
		l.journal.at = 0
		l.journal.makeWritable()
	}
	return nil
}

func putFolded(tx *bbolt.Tx, number uint64) error {
	return tx.Bucket(bucketMeta).Put(keyFolded, strconv.AppendUint(nil, number, 10))
}

// apply writes values, the later ones over the earlier ones, and the sum of their checksums.
func (s *Store) apply(tx *bbolt.Tx, all ...values) error {
	sum := total(tx)
	for _, v := range all {
		for k, value := range v {
			changed, err := apply(tx, entry{k.kind, k.key, value})
			if err != nil {
				return err
			}
			sum += changed
		}
	}
	if !s.counted.Load() {
		return recount(tx)
	}
	return putTotal(tx, sum)
}

// apply writes one value. It returns by how much that changes the sum of all checksums.
func apply(tx *bbolt.Tx, e entry) (changed uint32, err error) {
	b, key := tx.Bucket(e.kind.bucket()), []byte(e.key)
	if was := b.Get(key); was != nil {
		changed -= sum(e.kind, e.key, was)
	}
	if e.value == nil {
		err = b.Delete(key)
	} else {
		changed += sum(e.kind, e.key, e.value)
		err = b.Put(key, e.value)
	}
	if err != nil {
		return 0, fmt.Errorf("write %s %s: %w", e.kind, e.key, err)
	}
	return changed, nil
}
