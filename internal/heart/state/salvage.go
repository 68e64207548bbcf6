// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"berth/internal/base/wholefile"
)

// keyCheck is the checksum of the bucket meta, and keyTotal the sum of the checksums of all
// records. An earlier berth writes neither. While it has a journal it changes one of the others: so
// a check that is wrong, and cannot be made right by one bit, is one of before its time. Once it
// has ended cleanly they are as it found them: so keyTotal counts only in the transaction that has
// written it, which is the last one if keyWritten has its number.
var (
	keyCheck   = []byte("check")
	keyTotal   = []byte("total")
	keyWritten = []byte("written")
)

// metaKeys are the keys of the bucket meta that keyCheck covers, in that order.
var metaKeys = [][]byte{keyVersion, keyOwner, keyEpoch, keyFolded, keyTotal}

// buckets are the names of the buckets.
var buckets = [][]byte{bucketMeta, KindSandbox.bucket(), KindContainer.bucket()}

// allMetaKeys are the same and those that the checksum leaves out. An earlier berth that knows
// keyCheck would take one that covers keyWritten for damaged.
var allMetaKeys = slices.Concat(metaKeys, [][]byte{keyCheck, keyWritten})

// checkOf returns the checksum of the values that get returns.
func checkOf(get func(key []byte) []byte) []byte {
	var b []byte
	for _, k := range metaKeys {
		b = fmt.Appendf(b, "%s=%q\n", k, get(k))
	}
	return fmt.Appendf(nil, "%08x", sum("meta", "", b))
}

// putCheck brings the check of the bucket meta up to date, in each transaction.
func putCheck(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	return errors.Join(meta.Put(keyWritten, strconv.AppendInt(nil, int64(tx.ID()), 10)), meta.Put(keyCheck, checkOf(meta.Get)))
}

// content is all that a database has.
type content struct {
	meta    map[string][]byte
	records map[Kind]map[string][]byte
}

// total is the sum of the checksums of all records.
func (c content) total() (n uint32) {
	for kind, values := range c.records {
		for k, v := range values {
			n += sum(kind, k, v)
		}
	}
	return n
}

// Salvage reports the damage that [Open] found and repaired.
type Salvage struct {
	// Mended is the number of repaired bits. Nothing was lost by them.
	Mended int
	// Lost names the unreadable parts, which are not on record any more.
	Lost []string
	// Kept is where the files are that were damaged; empty if they are as they were.
	Kept []string
}

// Damaged reports whether there was damage.
func (s Salvage) Damaged() bool { return s.Mended > 0 || len(s.Lost) > 0 }

// readContent reads a database without bbolt, and repairs it as far as possible. It returns bbolt's
// error for a file that is not a database.
func readContent(b []byte) (content, *pages, error) {
	c, p, err := readOnce(b)
	if err != nil || p.adds(c) {
		return c, p, err
	}
	// A page number may refer to an earlier version of the page.
	for _, at := range p.links {
		for bit := range 64 {
			id := little.Uint64(b[at:]) ^ 1<<bit
			if _, _, err := layout(p.at(id), id, p.size); err != nil {
				continue
			}
			b[at+bit/8] ^= 1 << (bit % 8)
			if c, p, err := readOnce(b); err == nil && p.adds(c) {
				p.mended++
				return c, p, nil
			}
			b[at+bit/8] ^= 1 << (bit % 8)
		}
	}
	p.faults = append(p.faults, "its records are not those that were written last")
	return c, p, nil
}

// adds reports whether the checksums of the records have the recorded sum, if the last transaction
// has written one.
func (p *pages) adds(c content) bool {
	n := c.get(keyTotal)
	return n == nil || string(c.get(keyWritten)) != strconv.FormatUint(p.written, 10) || !c.isChecked() || len(p.faults) > 0 ||
		string(n) == fmt.Sprintf("%08x", c.total())
}

func readOnce(b []byte) (content, *pages, error) {
	c := content{meta: map[string][]byte{}, records: map[Kind]map[string][]byte{KindSandbox: {}, KindContainer: {}}}
	p, err := readPages(b)
	if err != nil {
		return c, nil, err
	}
	p.walk(p.root, func(it item) {
		p.is(it, true)
		switch p.nearest(it.key, buckets) {
		case 0:
			p.bucket(it.value, func(it item) {
				if i := p.nearest(it.key, allMetaKeys); i >= 0 {
					p.is(it, false)
					c.meta[string(allMetaKeys[i])] = it.value
				}
			})
		case 1:
			p.records(it, KindSandbox, c.records[KindSandbox])
		case 2:
			p.records(it, KindContainer, c.records[KindContainer])
		}
	})
	p.checkMeta(c)
	return c, p, nil
}

func (c content) get(key []byte) []byte { return c.meta[string(key)] }

func (c content) isChecked() bool {
	return c.meta[string(keyCheck)] != nil && bytes.Equal(checkOf(c.get), c.meta[string(keyCheck)])
}

// checkMeta repairs one bit in the values of the bucket meta.
func (p *pages) checkMeta(c content) {
	if c.meta[string(keyCheck)] == nil || c.isChecked() {
		return
	}
	for _, k := range allMetaKeys {
		if flipped(c.meta[string(k)], c.isChecked) {
			p.values++
			return
		}
	}
}

// is notes an item that is marked as a bucket and is none, or the other way round.
func (p *pages) is(it item, bucket bool) {
	if it.bucket != bucket {
		p.mended++
	}
}

// nearest returns the index of the name that equals a key, or differs from it by one bit; -1 if
// none does.
func (p *pages) nearest(key []byte, names [][]byte) int {
	for i, name := range names {
		if n := distance(key, name); n <= 1 {
			p.mended += n
			return i
		}
	}
	return -1
}

// distance is the number of bits in which two keys of the same length differ, or two.
func distance(a, b []byte) (n int) {
	if len(a) != len(b) {
		return 2
	}
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return min(n, 2)
}

// records reads the records of one kind, and repairs them as far as their checksums allow.
func (p *pages) records(bucket item, kind Kind, into map[string][]byte) {
	last := ""
	p.bucket(bucket.value, func(it item) {
		p.is(it, false)
		sealed := isSealed(it.value)
		if sealed && check(kind, string(it.key), it.value) != nil || !sealed && (!isKey(it.key) || !json.Valid(it.value)) {
			if mend(kind, &it) {
				p.values++
			}
		}
		if _, twice := into[string(it.key)]; twice || string(it.key) < last {
			p.disorder = true
		}
		last = string(it.key)
		into[last] = it.value
	})
}

// isKey reports whether k is the key of a record.
func isKey(k []byte) bool {
	return bytes.HasSuffix(k, []byte(suffixIntent)) || bytes.HasSuffix(k, []byte(suffixStatus))
}

// salvage reads a database before bbolt does, because bbolt panics at an unreadable page. It writes
// a damaged one anew, with everything that can be read and repaired, and keeps the damaged file
// beside it. A record costs the others nothing. On a disk that cannot be written, one of which only
// values are damaged stays as it is, and any other is ErrDamaged.
func salvage(path string) (Salvage, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Salvage{}, nil
	}
	if err != nil {
		return Salvage{}, err
	}
	defer func() { _ = f.Close() }()
	if err := lock(f); err != nil {
		return Salvage{}, err
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return Salvage{}, err
	}
	c, p, err := readContent(b)
	if err != nil {
		if len(b) >= 2*os.Getpagesize() {
			return Salvage{}, err // another file
		}
		p = &pages{faults: []string{"it is cut off at its beginning"}}
	}
	s := Salvage{Mended: p.mended + p.values}
	for _, fault := range p.faults {
		s.Lost = append(s.Lost, fmt.Sprintf("%s: %s", path, fault))
	}
	if !s.Damaged() && !p.disorder {
		return s, nil
	}
	kept, err := c.write(path)
	switch {
	case err == nil:
		s.Kept = append(s.Kept, kept)
	case len(p.faults) == 0 && !p.disorder && p.mended == 0:
		return Salvage{}, nil // Load names the record
	default:
		err = fmt.Errorf("%w: it cannot be written anew: %w", ErrDamaged, err)
	}
	return s, err
}

// lock waits as long as bbolt does for another process to close the database.
func lock(f *os.File) error {
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockTimeout / 20) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if !time.Now().Before(deadline) {
			return berrors.ErrTimeout
		}
	}
}

// write writes a database anew, and returns where the one before is.
func (c content) write(path string) (kept string, err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	next := path + ".new"
	_ = os.Remove(next) // of a salvage that was cut off
	db, err := bbolt.Open(next, 0o600, &bbolt.Options{NoFreelistSync: true})
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(next) }()
	err = db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket(bucketMeta)
		for _, k := range metaKeys {
			if v := c.meta[string(k)]; v != nil {
				err = errors.Join(err, meta.Put(k, v))
			}
		}
		for kind, values := range c.records {
			b, berr := tx.CreateBucket(kind.bucket())
			if err := errors.Join(err, berr); err != nil {
				return err
			}
			for k, v := range values {
				err = errors.Join(err, b.Put([]byte(k), v))
			}
		}
		return errors.Join(err, meta.Put(keyTotal, fmt.Appendf(nil, "%08x", c.total())), putCheck(tx))
	})
	if err := cmp.Or(err, db.Close()); err != nil {
		return "", err
	}
	kept = path + ".damaged"
	_ = os.Remove(kept)
	if err := os.Link(path, kept); err != nil {
		return "", err
	}
	if err := os.Rename(next, path); err != nil {
		return "", err
	}
	return kept, wholefile.SyncDir(filepath.Dir(path))
}

// total returns the recorded sum of the checksums of all records.
func total(tx *bbolt.Tx) uint32 {
	n, _ := strconv.ParseUint(string(tx.Bucket(bucketMeta).Get(keyTotal)), 16, 32)
	return uint32(n)
}

// putTotal writes the sum of the checksums of all records.
func putTotal(tx *bbolt.Tx, n uint32) error {
	return tx.Bucket(bucketMeta).Put(keyTotal, fmt.Appendf(nil, "%08x", n))
}

// recount writes the sum of the checksums of the existing records anew, because an earlier berth
// may have written some.
func recount(tx *bbolt.Tx) error {
	n := uint32(0)
	for _, kind := range []Kind{KindSandbox, KindContainer} {
		err := tx.Bucket(kind.bucket()).ForEach(func(k, v []byte) error {
			n += sum(kind, string(k), v)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return putTotal(tx, n)
}
