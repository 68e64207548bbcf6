// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Loaded is everything that was on disk.
type Loaded struct {
	Sandboxes  []SandboxRecord
	Containers []ContainerRecord
	// Damaged are the records that could not be read as a whole. They stay on disk.
	Damaged []Damaged
	// Salvage reports the damage that Open found and repaired.
	Salvage Salvage
	// Orphans are the keys of statuses that no intent belonged to. They were deleted, or will be by
	// the next Load.
	Orphans []string
}

// SandboxRecord is a sandbox as it was loaded.
type SandboxRecord struct {
	Sandbox
	Status Status
}

// ContainerRecord is a container as it was loaded.
type ContainerRecord struct {
	Container
	Status Status
}

// Damaged is a record of which something could not be read.
type Damaged struct {
	Kind Kind
	ID   string
	// Err names the unreadable parts.
	Err error
	// Sandbox or Container, by Kind, holds the readable part of the intent. Its ID is set and its
	// Config is not nil; any other field may be zero.
	Sandbox   Sandbox
	Container Container
	// Status holds the readable part of the status; any field may be zero. Holds is everything if the
	// holds could not be read, because anything may exist then.
	Status Status

	newer bool // it is as it was written
}

// Delete returns the change that deletes the record.
func (d Damaged) Delete() Change { return Change{kind: d.Kind, id: d.ID, remove: true} }

// Load reads every record. The error is about the database. A record that cannot be read is
// returned in Damaged, and does not keep the others from loading, unless its checksum is right: then
// it is not damaged, but of a newer berth, and the error is [ErrNewer]. As a damaged one its pod
// would be NOTREADY, and the kubelet would replace it.
func (s *Store) Load() (Loaded, error) {
	all := Loaded{Salvage: s.salvage}
	var orphaned []Change // that delete the orphans
	s.writing.Lock()
	err := s.db.View(func(tx *bbolt.Tx) error {
		for _, kind := range []Kind{KindSandbox, KindContainer} {
			orphaned = append(orphaned, all.loadKind(s.log.merged(tx, kind), kind)...)
		}
		return nil
	})
	s.writing.Unlock()
	if err != nil {
		return Loaded{}, fmt.Errorf("load state %s: %w", s.path, err)
	}
	if i := slices.IndexFunc(all.Damaged, func(d Damaged) bool { return d.newer }); i >= 0 {
		return Loaded{}, fmt.Errorf("load state %s: %w: %w: start the berth that wrote it, or a later one; the pods run on meanwhile", s.path, ErrNewer, all.Damaged[i].Err)
	}
	if len(orphaned) > 0 {
		_ = s.Commit(orphaned...) // if it fails, the next Load finds them again
	}
	return all, nil
}

// merged returns the values of a kind in the database and the journal.
func (l *log) merged(tx *bbolt.Tx, kind Kind) map[string][]byte {
	all := map[string][]byte{}
	_ = tx.Bucket(kind.bucket()).ForEach(func(k, v []byte) error {
		all[string(k)] = v // valid as long as tx
		return nil
	})
	for _, newer := range []values{l.sealed, l.pending} {
		for k, v := range newer {
			switch {
			case k.kind != kind:
			case v == nil:
				delete(all, k.key)
			default:
				all[k.key] = v
			}
		}
	}
	return all
}

// loadKind reads the records of one kind, by their keys. A key that is neither an intent nor a
// status is left alone. It returns the changes that delete the orphans: earlier versions of berth
// could write a status after the deletion of its record.
func (all *Loaded) loadKind(values map[string][]byte, kind Kind) (orphaned []Change) {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if id, ok := strings.CutSuffix(k, suffixIntent); ok {
			all.loadRecord(kind, id, values[k], values[id+suffixStatus])
		} else if id, ok := strings.CutSuffix(k, suffixStatus); ok && values[id+suffixIntent] == nil {
			all.Orphans = append(all.Orphans, k)
			orphaned = append(orphaned, Change{kind: kind, id: id, remove: true})
		}
	}
	return orphaned
}

func (all *Loaded) loadRecord(kind Kind, id string, intent, status []byte) {
	var errs [2]error
	d := Damaged{Kind: kind, ID: id}
	if kind == KindSandbox {
		d.Sandbox, errs[0] = readSandbox(id, intent)
	} else {
		d.Container, errs[0] = readContainer(id, intent)
	}
	d.Status, errs[1] = readStatus(status)
	for i, part := range []struct {
		key   []byte
		value []byte
	}{{intentKey(id), intent}, {statusKey(id), status}} {
		changed := check(kind, string(part.key), part.value)
		if errs[i] == nil {
			errs[i] = wrap([]string{"intent", "status"}[i], changed)
		} else {
			d.newer = d.newer || changed == nil && isSealed(part.value)
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		d.Err = fmt.Errorf("read the record of %s %s: %w", kind, id, err)
		all.Damaged = append(all.Damaged, d)
		return
	}
	if kind == KindSandbox {
		all.Sandboxes = append(all.Sandboxes, SandboxRecord{d.Sandbox, d.Status})
	} else {
		all.Containers = append(all.Containers, ContainerRecord{d.Container, d.Status})
	}
}

func readContainer(id string, b []byte) (Container, error) {
	var c Container
	err := readJSON(b, &c)
	if err == nil && c.ID != id {
		err = fmt.Errorf("it names container %q", c.ID)
	}
	c.ID, c.Config = id, &runtimeapi.ContainerConfig{}
	err = errors.Join(err, proto.Unmarshal(c.Raw, c.Config)) // keeps the fields before the damage
	c.Raw = nil
	return c, wrap("intent", err)
}

func readSandbox(id string, b []byte) (Sandbox, error) {
	var s Sandbox
	err := readJSON(b, &s)
	if err == nil && s.ID != id {
		err = fmt.Errorf("it names sandbox %q", s.ID)
	}
	s.ID, s.Config = id, &runtimeapi.PodSandboxConfig{}
	err = errors.Join(err, proto.Unmarshal(s.Raw, s.Config)) // keeps the fields before the damage
	s.Raw = nil
	return s, wrap("intent", err)
}

func readStatus(b []byte) (Status, error) {
	if b == nil {
		return Status{Holds: holdAll}, wrap("status", errors.New("it is absent"))
	}
	st := Status{Holds: holdAll} // stays if the holds cannot be read
	err := readJSON(b, &st)
	if err == nil {
		err = st.complete(b)
	}
	return st, wrap("status", err)
}

func wrap(part string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	return nil
}

// readJSON decodes an object. If that fails, it decodes as many fields, each by itself, as are
// readable, and returns the first error.
func readJSON[T any](b []byte, into *T) error {
	begin := *into
	err := json.Unmarshal(b, into)
	if err == nil {
		return nil
	}
	*into = begin
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, terr := dec.Token(); terr != nil || t != json.Delim('{') {
		return err
	}
	for dec.More() {
		key, kerr := dec.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if kerr != nil || !ok || dec.Decode(&value) != nil {
			return err
		}
		field, merr := json.Marshal(map[string]json.RawMessage{name: value})
		if merr != nil {
			continue
		}
		was := *into
		if json.Unmarshal(field, into) != nil {
			*into = was
		}
	}
	return err
}
