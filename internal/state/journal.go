// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// journalSize is the size of the journal, which never changes, so that a write changes nothing
	// but the blocks that it writes.
	journalSize = 512 << 10
	// blockSize is what a record's length is rounded up to. No block is written again as long as its
	// record counts: a write that a crash cuts off cannot damage a record that was committed before.
	blockSize = 4096
	// headerSize is the length of a record's header: magic, epoch, number, the length of the
	// payload, and the checksum of all these and the payload.
	headerSize = 32
	sumAt      = headerSize - 4
	magic      = "berthrec"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errFull is returned for a record for which the journal has no room left.
var errFull = errors.New("the journal is full")

// device is where a journal is. WriteAt returns nil after the bytes are on disk.
type device interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
	Close() error
}

// epoch tells the records of one use of the journal from those of all earlier ones. It is random,
// so that nothing in a payload can be taken for a record.
type epoch [8]byte

// journal is a file of records, from its beginning on: what was committed and is not in the
// database yet. Records have consecutive numbers. Once everything is in the database, the journal
// begins anew, and the numbers go on.
type journal struct {
	device
	epoch epoch
	at    int64 // where the next record goes
	buf   []byte
}

// openJournal opens the journal at path. It makes one that is absent, if make is set.
func openJournal(path string, create bool) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DSYNC, 0)
	if errors.Is(err, fs.ErrNotExist) && create {
		if err = makeJournal(path); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|unix.O_DSYNC, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Size() != journalSize || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: %s is not a file of %d bytes", ErrDamaged, path, journalSize), err, f.Close())
	}
	return &journal{device: f}, nil
}

// makeJournal makes a journal of zeros, on disk. Its blocks are written, and not merely allocated:
// else each first write to one would have to change the file's metadata, too.
func makeJournal(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".journal-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(make([]byte, journalSize))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// append writes a record and returns nil once it is on disk, [errFull], or an error of the disk,
// after which the record may or may not be there.
func (j *journal) append(number uint64, payload []byte) error {
	n := (headerSize + len(payload) + blockSize - 1) / blockSize * blockSize
	if int64(n) > journalSize-j.at {
		return errFull
	}
	if cap(j.buf) < n {
		j.buf = make([]byte, n)
	}
	b := j.buf[:n]
	copy(b, magic)
	copy(b[8:], j.epoch[:])
	binary.LittleEndian.PutUint64(b[16:], number)
	binary.LittleEndian.PutUint32(b[24:], uint32(len(payload))) //nolint:gosec // less than the journal
	clear(b[headerSize+copy(b[headerSize:], payload):])
	binary.LittleEndian.PutUint32(b[sumAt:], checksum(b, len(payload)))
	if _, err := j.WriteAt(b, j.at); err != nil {
		return err
	}
	j.at += int64(n)
	return nil
}

// checksum is that of the record at the beginning of b.
func checksum(b []byte, payload int) uint32 {
	return crc32.Update(crc32.Checksum(b[:sumAt], castagnoli), castagnoli, b[headerSize:headerSize+payload])
}

// record is one record of a journal.
type record struct {
	number  uint64
	payload []byte
	blocks  int64 // its length, in bytes
}

// recordAt returns the record at the beginning of b. It reports false when there is no whole one of
// this epoch.
func (e epoch) recordAt(b []byte) (record, bool) {
	if len(b) < headerSize || string(b[:8]) != magic || epoch(b[8:16]) != e {
		return record{}, false
	}
	n := int64(binary.LittleEndian.Uint32(b[24:]))
	if n > int64(len(b)-headerSize) || binary.LittleEndian.Uint32(b[sumAt:]) != checksum(b, int(n)) {
		return record{}, false
	}
	return record{
		number:  binary.LittleEndian.Uint64(b[16:]),
		payload: b[headerSize : headerSize+n],
		blocks:  (headerSize + n + blockSize - 1) / blockSize * blockSize,
	}, true
}

// replay returns the payloads of the records that follow number folded, and lets the journal go on
// after the last of them. A record that a crash cut off is the end. One that is damaged although
// records follow it, and records that do not follow on what is in the database, are [ErrDamaged].
func (j *journal) replay(folded uint64) (payloads [][]byte, last uint64, err error) {
	j.at = 0
	b := make([]byte, journalSize)
	if _, err := j.ReadAt(b, 0); err != nil {
		return nil, 0, fmt.Errorf("read the journal: %w", err)
	}
	// Most often the first record is folded+1, or all are in the database. Where berth could not know
	// whether a write of the database took effect, some of them are.
	at := int64(0)
	last = folded
	for next := uint64(0); ; next++ {
		r, ok := j.epoch.recordAt(b[at:])
		if !ok || r.number != next && at > 0 || r.number > last+1 {
			break
		}
		next = r.number
		at += r.blocks
		if r.number > folded {
			payloads, last, j.at = append(payloads, r.payload), r.number, at
		}
	}
	for at = j.at; at < journalSize; at += blockSize {
		if r, ok := j.epoch.recordAt(b[at:]); ok && r.number > last {
			return nil, 0, fmt.Errorf("%w: its journal has record %d, and record %d is not there or damaged", ErrDamaged, r.number, last+1)
		}
	}
	return payloads, last, nil
}

// entry is one key of the database with its new value; nil deletes it.
type entry struct {
	kind  Kind
	key   string
	value []byte
}

// encodeEntries is the payload of a record.
func encodeEntries(b []byte, entries []entry) []byte {
	for _, e := range entries {
		flags := byte(0)
		if e.kind == KindSandbox {
			flags |= 1
		}
		if e.value == nil {
			flags |= 2
		}
		b = append(b, flags)
		b = append(binary.AppendUvarint(b, uint64(len(e.key))), e.key...)
		b = append(binary.AppendUvarint(b, uint64(len(e.value))), e.value...)
	}
	return b
}

// decodeEntries is the inverse of encodeEntries.
func decodeEntries(b []byte) (entries []entry, err error) {
	field := func() []byte {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			err, b = fmt.Errorf("%w: a record of its journal cannot be decoded", ErrDamaged), nil
			return nil
		}
		f := b[used : used+int(n)] //nolint:gosec // not more than len(b)
		b = b[used+int(n):]        //nolint:gosec // likewise
		return f
	}
	for len(b) > 0 {
		flags := b[0]
		b = b[1:]
		e := entry{kind: KindContainer, key: string(field()), value: field()}
		if flags&1 != 0 {
			e.kind = KindSandbox
		}
		if flags&2 != 0 {
			e.value = nil
		}
		if err == nil && (flags > 3 || e.key == "") {
			err = fmt.Errorf("%w: a record of its journal has an unknown entry", ErrDamaged)
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}
