// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Version of the layout. A berth reads its own and older ones.
const Version = 1

var (
	// ErrNewer: the database was written by a newer berth.
	ErrNewer = errors.New("state was written by a newer berth")
	// ErrInUse: another berth has the database open.
	ErrInUse = errors.New("state is in use by another berth")
)

var (
	bucketMeta       = []byte("meta")
	bucketSandboxes  = []byte("sandboxes")
	bucketContainers = []byte("containers")
	keyVersion       = []byte("version")
	keyOwner         = []byte("owner")
)

const (
	suffixIntent = "/intent"
	suffixStatus = "/status"
)

// Change is one write of a transaction.
type Change struct {
	bucket []byte
	id     string
	intent func() ([]byte, error) // nil: unchanged
	status *Status                // nil: unchanged
	remove bool
}

// ID names the record that the change is about, for logs.
func (ch Change) ID() string { return ch.id }

// NewContainer writes a container's intent and first status.
func NewContainer(c Container, s Status) Change {
	return Change{bucket: bucketContainers, id: c.ID, intent: c.encode, status: &s}
}

// NewSandbox writes a sandbox's intent and first status.
func NewSandbox(sb Sandbox, s Status) Change {
	return Change{bucket: bucketSandboxes, id: sb.ID, intent: sb.encode, status: &s}
}

// ContainerStatus replaces a container's status.
func ContainerStatus(id string, s Status) Change {
	return Change{bucket: bucketContainers, id: id, status: &s}
}

// SandboxStatus replaces a sandbox's status.
func SandboxStatus(id string, s Status) Change {
	return Change{bucket: bucketSandboxes, id: id, status: &s}
}

// DeleteContainer deletes a container's record.
func DeleteContainer(id string) Change {
	return Change{bucket: bucketContainers, id: id, remove: true}
}

// DeleteSandbox deletes a sandbox's record.
func DeleteSandbox(id string) Change {
	return Change{bucket: bucketSandboxes, id: id, remove: true}
}

// Store is the database. Its methods may be called from any goroutine.
type Store struct {
	db    *bbolt.DB
	path  string
	owner string

	mu struct {
		sync.Mutex
		waiting []*commit // not yet taken by a leader
		leading bool      // a caller is writing; it takes the waiting ones next
	}
}

type commit struct {
	changes []Change
	done    chan error // buffered: the leader never blocks on it
	lead    chan struct{}
}

// Open opens or makes the database berth.db in dir (mode 0700, made if absent).
// It fails with [ErrInUse] when another process has it open, with [ErrNewer] when
// a newer berth wrote it.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	path := filepath.Join(dir, "berth.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:        500 * time.Millisecond, // of waiting for the file lock
		FreelistType:   bbolt.FreelistMapType,
		NoFreelistSync: true,
	})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("open state %s: %w: stop it, or give this one a --root of its own", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("open state %s: %w", path, err)
	}
	s := &Store{db: db, path: path}
	if err := s.prepare(); err != nil {
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) prepare() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		if v := meta.Get(keyVersion); v != nil {
			n, err := strconv.Atoi(string(v))
			if err != nil {
				return fmt.Errorf("open state %s: version %q is not a number", s.path, v)
			}
			if n > Version {
				return fmt.Errorf("open state %s: %w: it has version %d, this berth reads up to %d; upgrade berth or move the directory away", s.path, ErrNewer, n, Version)
			}
		}
		for _, b := range [][]byte{bucketSandboxes, bucketContainers} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		if meta.Get(keyOwner) == nil {
			var id [8]byte
			_, _ = rand.Read(id[:]) // never fails
			if err := meta.Put(keyOwner, []byte(hex.EncodeToString(id[:]))); err != nil {
				return err
			}
		}
		s.owner = string(meta.Get(keyOwner))
		return meta.Put(keyVersion, []byte(strconv.Itoa(Version)))
	})
}

// Owner is the ID of the berth that this state belongs to, made with the database: what berth makes outside
// carries it.
func (s *Store) Owner() string { return s.owner }

// Close closes the database. Commits in flight are finished first.
func (s *Store) Close() error { return s.db.Close() }

// Commit writes the changes in one transaction and returns once they are on disk.
// Commits of other callers may share the transaction; if that fails, each is
// tried by itself, so that nobody gets another's error.
func (s *Store) Commit(changes ...Change) error {
	c := &commit{changes: changes, done: make(chan error, 1), lead: make(chan struct{}, 1)}
	s.mu.Lock()
	s.mu.waiting = append(s.mu.waiting, c)
	if s.mu.leading {
		s.mu.Unlock()
		select {
		case err := <-c.done:
			return err
		case <-c.lead: // the leader before us is done and hands over
		}
		s.mu.Lock()
	}
	s.mu.leading = true
	batch := s.mu.waiting
	s.mu.waiting = nil
	s.mu.Unlock()

	s.write(batch)

	// Whoever waits first leads the next transaction: nobody writes for others for ever.
	s.mu.Lock()
	if len(s.mu.waiting) > 0 {
		s.mu.waiting[0].lead <- struct{}{}
	} else {
		s.mu.leading = false
	}
	s.mu.Unlock()
	return <-c.done
}

func (s *Store) write(batch []*commit) {
	err := s.transaction(batch)
	if err != nil && len(batch) > 1 {
		for _, c := range batch {
			c.done <- s.transaction([]*commit{c})
		}
		return
	}
	for _, c := range batch {
		c.done <- err
	}
}

func (s *Store) transaction(batch []*commit) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for _, c := range batch {
			for _, ch := range c.changes {
				if err := ch.apply(tx); err != nil {
					return fmt.Errorf("record %s: %w", ch.id, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("commit state %s: %w", s.path, err)
	}
	return nil
}

func (ch Change) apply(tx *bbolt.Tx) error {
	b := tx.Bucket(ch.bucket)
	intent, status := []byte(ch.id+suffixIntent), []byte(ch.id+suffixStatus)
	if ch.remove {
		if err := b.Delete(intent); err != nil {
			return err
		}
		return b.Delete(status)
	}
	if ch.intent != nil {
		v, err := ch.intent()
		if err != nil {
			return err
		}
		if err := b.Put(intent, v); err != nil {
			return err
		}
	}
	if ch.status == nil {
		return nil
	}
	v, err := json.Marshal(ch.status)
	if err != nil {
		return err
	}
	return b.Put(status, v)
}

// SandboxRecord is a sandbox as loaded.
type SandboxRecord struct {
	Sandbox
	Status Status
}

// ContainerRecord is a container as loaded.
type ContainerRecord struct {
	Container
	Status Status
}

// Damaged is a record that could not be read; it is left on disk.
type Damaged struct {
	ID  string
	Err error
}

// Loaded is everything that was on disk.
type Loaded struct {
	Sandboxes  []SandboxRecord
	Containers []ContainerRecord
	Damaged    []Damaged
}

// Load reads every record. The error is the database's; a record that cannot be read is
// reported in Damaged and does not keep the others from loading.
func (s *Store) Load() (Loaded, error) {
	var all Loaded
	err := s.db.View(func(tx *bbolt.Tx) error {
		each(tx, bucketSandboxes, &all, func(intent, status []byte) error {
			var r SandboxRecord
			var err error
			if r.Sandbox, err = decodeSandbox(intent); err != nil {
				return err
			}
			if err := json.Unmarshal(status, &r.Status); err != nil {
				return err
			}
			all.Sandboxes = append(all.Sandboxes, r)
			return nil
		})
		each(tx, bucketContainers, &all, func(intent, status []byte) error {
			var r ContainerRecord
			var err error
			if r.Container, err = decodeContainer(intent); err != nil {
				return err
			}
			if err := json.Unmarshal(status, &r.Status); err != nil {
				return err
			}
			all.Containers = append(all.Containers, r)
			return nil
		})
		return nil
	})
	if err != nil {
		return Loaded{}, fmt.Errorf("load state %s: %w", s.path, err)
	}
	return all, nil
}

// each calls read for every record of a bucket and collects its errors as damage.
func each(tx *bbolt.Tx, bucket []byte, all *Loaded, read func(intent, status []byte) error) {
	b := tx.Bucket(bucket)
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		id, ok := strings.CutSuffix(string(k), suffixIntent)
		if !ok {
			if id, ok := strings.CutSuffix(string(k), suffixStatus); !ok || b.Get([]byte(id+suffixIntent)) == nil {
				all.Damaged = append(all.Damaged, Damaged{ID: string(k), Err: errors.New("no intent belongs to this key")})
			}
			continue
		}
		if err := read(v, b.Get([]byte(id+suffixStatus))); err != nil {
			all.Damaged = append(all.Damaged, Damaged{ID: id, Err: fmt.Errorf("read record %s: %w", id, err)})
		}
	}
}
