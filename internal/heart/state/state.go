// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"berth/internal/base/wholefile"
)

// Version is the newest version of the layout on disk that this berth reads: a database with a
// journal of two halves. Version 2 is a journal without halves, which an earlier berth left when it
// was killed. A database that was closed, and so has no journal, has versionClosed, which every
// berth reads.
const (
	Version       = 3
	versionClosed = 1
)

var (
	// ErrNewer is returned for a database that a newer berth wrote.
	ErrNewer = errors.New("state was written by a newer berth")
	// ErrInUse is returned for a database that another berth has open.
	ErrInUse = errors.New("state is in use by another berth")
	// ErrDamaged is returned for a database whose file is damaged, other than in single records.
	ErrDamaged = errors.New("state is damaged")
)

// Kind is the kind of object that a record describes.
type Kind string

const (
	KindSandbox   Kind = "sandbox"
	KindContainer Kind = "container"
)

// bucket returns the name of the bucket that the records of the kind are in.
func (k Kind) bucket() []byte {
	if k == KindSandbox {
		return []byte("sandboxes")
	}
	return []byte("containers")
}

var (
	bucketMeta = []byte("meta")
	keyVersion = []byte("version")
	keyOwner   = []byte("owner")
)

const (
	suffixIntent = "/intent"
	suffixStatus = "/status"
)

func intentKey(id string) []byte { return []byte(id + suffixIntent) }
func statusKey(id string) []byte { return []byte(id + suffixStatus) }

// Store is the database and its journal. Its methods may be called from any goroutine.
type Store struct {
	db      *database
	path    string
	owner   string
	writes  writes
	salvage Salvage
	// counted is set if the database has the sum of its records' checksums from this berth.
	counted atomic.Bool

	mu struct {
		sync.Mutex
		waiting []*commit // that no leader has taken yet
		leading bool      // a call of Commit leads, or is about to
	}

	// writing is held while the database or the journal is written. It guards log.
	writing sync.Mutex
	log     log
	folding sync.WaitGroup // folds beside the commits
}

// Open opens the database berth.db in dir. It makes both if they are absent, dir with mode 0700. It
// returns [ErrInUse] when another process has the database open, [ErrNewer] when a newer berth
// wrote it, and [ErrDamaged] when it cannot be read. Opening a complete database writes nothing, so
// a full or read-only disk does not matter: the records are read then, and commits fail until the
// disk can be written. The caller closes the store.
func Open(dir string) (*Store, error) { return openThrough(dir, os.OpenFile) }

func openThrough(dir string, openFile opener) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	path := filepath.Join(dir, "berth.db")
	s := &Store{path: path}
	var err error
	if s.salvage, err = salvage(path); err != nil {
		return nil, openError(path, err)
	}
	db, err := openDatabase(path, openFile)
	if err != nil {
		return nil, openError(path, err)
	}
	s.db = db
	if err = s.prepare(); err == nil {
		s.keepOwner()
		err = s.restore(openFile)
	}
	if err != nil {
		_ = errors.Join(s.log.close(), s.db.Close())
		return nil, openError(path, err)
	}
	if db.readOnly != nil {
		s.writes.note(fmt.Errorf("%w: %w", db.readOnly, errdefs.ErrUnavailable))
	}
	return s, nil
}

func openError(path string, err error) error {
	const remedy = "put a backup in its place, or move it away and berth will remove the pods that it names"
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("open state %s: %w: stop it, or give this one a --root of its own", path, ErrInUse)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return fmt.Errorf("open state %s: %w: %w: %s", path, ErrDamaged, err, remedy)
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("open state %s: %w: %s", path, err, remedy)
	}
	return fmt.Errorf("open state %s: %w", path, err)
}

// guarded turns a panic of bbolt's, or a page beyond the end of the file, into an error.
func guarded(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return do()
}

// prepare makes the buckets, the version and the owner if they are absent.
func (s *Store) prepare() error {
	complete := false
	err := s.db.View(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			return nil
		}
		if meta.Get(keyVersion) == nil {
			return nil
		}
		n := versionOf(meta)
		if n > Version {
			return fmt.Errorf("%w: it has version %d, this berth reads up to %d: upgrade berth, or move the file away", ErrNewer, n, Version)
		}
		s.owner = string(meta.Get(keyOwner))
		complete = n >= versionClosed && s.owner != "" && tx.Bucket(KindSandbox.bucket()) != nil && tx.Bucket(KindContainer.bucket()) != nil
		return nil
	})
	if err != nil || complete {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		if s.owner == "" {
			s.owner = ownerBeside(s.path)
		}
		if s.owner == "" {
			var id [8]byte
			_, _ = rand.Read(id[:]) // never fails
			s.owner = hex.EncodeToString(id[:])
		}
		meta := tx.Bucket(bucketMeta)
		err := errors.Join(meta.Put(keyOwner, []byte(s.owner)), meta.Put(keyVersion, []byte(strconv.Itoa(versionClosed))))
		return errors.Join(err, recount(tx), putCheck(tx))
	})
}

// versionOf returns the version of the layout. If it is not a number, it is damaged: there is a
// journal if the rest of the bucket meta names one.
func versionOf(meta *bbolt.Bucket) int {
	n, err := strconv.Atoi(string(meta.Get(keyVersion)))
	switch {
	case err == nil:
		return n
	case meta.Get(keyEpoch) != nil:
		return Version
	}
	return versionClosed
}

// Salvage reports the damage that Open found and repaired.
func (s *Store) Salvage() Salvage { return s.salvage }

// ownerPath is the file that has a copy of the owner: without it, berth would not recognise its own
// objects if the database is lost.
func ownerPath(db string) string { return filepath.Join(filepath.Dir(db), "berth.owner") }

// ownerBeside returns the owner in the file beside the database; "" if it has none.
func ownerBeside(db string) string {
	b, err := os.ReadFile(ownerPath(db))
	id := strings.TrimSpace(string(b))
	if raw, herr := hex.DecodeString(id); err != nil || herr != nil || len(raw) != 8 {
		return ""
	}
	return id
}

// keepOwner writes the owner beside the database, if it is not there. If that fails, the next Open
// does.
func (s *Store) keepOwner() {
	if s.owner != "" && ownerBeside(s.path) != s.owner {
		_ = wholefile.Write(ownerPath(s.path), []byte(s.owner+"\n"), 0o600, -1, -1)
	}
}

// Owner returns the ID of the berth that this state belongs to. It is made with the database, and
// everything that berth makes outside carries it.
func (s *Store) Owner() string { return s.owner }

// Close closes the database, after the transaction in flight. Later commits return an error. The
// entries in the journal are first brought into the database, so that a copy of berth.db alone is
// complete, and an older berth reads it. If that fails, the next Open finds the journal.
func (s *Store) Close() error {
	s.writing.Lock()
	err := s.fold(true)
	err = errors.Join(err, s.log.close(), s.db.Close())
	s.writing.Unlock()
	s.folding.Wait()
	return err
}
