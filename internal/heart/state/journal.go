// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/base/frame"
	"berth/internal/base/wholefile"
)

const (
	// journalSize is the size of the journal, which never changes, so that a write changes nothing
	// but the blocks that it writes. One half of it is written while the other half is folded.
	journalSize = 2 * halfSize
	halfSize    = 256 << 10
	// blockSize is the unit to which a record's length is rounded up. No block is written again as
	// long as its record counts: a write that a crash cuts off cannot damage a record that was
	// committed before.
	blockSize = 4096
	magic     = "berthrec"
)

// errFull is returned for a record for which the half that is written has no room left.
var errFull = errors.New("the half of the journal is full")

// device is where a journal is. WriteAt returns nil after the bytes are on disk.
type device interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
	Close() error
}

// epoch distinguishes the records of one use of the journal from those of all earlier ones. It is
// random, so that nothing in a payload can be taken for a record.
type epoch [8]byte

func (e epoch) form() frame.Form { return frame.Form{Magic: magic, Epoch: e} }

// journal is a file of the records that were committed and are not in the database yet. Records
// have consecutive numbers, and lie one behind the other from the beginning of a half. A half is
// written anew once all its records are in the database, and the numbers go on.
type journal struct {
	device
	epoch epoch
	half  int64 // which half is written: 0 or 1
	at    int64 // where in it the next record goes
	buf   []byte

	path     string
	openFile opener
	readOnly bool // its disk could only be read when it was opened
}

// openJournal opens the journal at path, for reading alone if its disk can only be read. It makes
// one that is absent, if make is set.
func openJournal(path string, create bool, openFile opener) (*journal, error) {
	f, err := openFile(path, os.O_RDWR|unix.O_DSYNC, 0)
	readOnly := errors.Is(err, unix.EROFS)
	if readOnly {
		f, err = openFile(path, os.O_RDONLY, 0)
	}
	if errors.Is(err, fs.ErrNotExist) && create {
		if err = makeJournal(path); err == nil {
			f, err = openFile(path, os.O_RDWR|unix.O_DSYNC, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Size() != journalSize || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: %s is not a file of %d bytes", ErrDamaged, path, journalSize), err, f.Close())
	}
	return &journal{device: f, path: path, openFile: openFile, readOnly: readOnly}, nil
}

// makeWritable opens a journal for writing that was opened for reading alone, if that is possible
// now. Nothing in it may be needed any more.
func (j *journal) makeWritable() {
	if !j.readOnly {
		return
	}
	if next, err := openJournal(j.path, false, j.openFile); err == nil && !next.readOnly {
		_ = j.Close()
		j.device, j.readOnly = next.device, false
	}
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
	return wholefile.SyncDir(filepath.Dir(path))
}

// append writes a record and returns nil once it is on disk, [errFull], or an error of the disk,
// after which the record may or may not be there.
func (j *journal) append(number uint64, payload []byte) error {
	n := inBlocks(frame.Header + len(payload))
	if int64(n) > halfSize-j.at {
		return errFull
	}
	if cap(j.buf) < n {
		j.buf = make([]byte, n)
	}
	b := j.buf[:n]
	clear(b[len(j.epoch.form().Append(b[:0], number, payload)):])
	if _, err := j.WriteAt(b, j.half*halfSize+j.at); err != nil {
		return err
	}
	j.at += int64(n)
	return nil
}

// turn goes on at the beginning of the other half, whose records are all in the database.
func (j *journal) turn() { j.half, j.at = 1-j.half, 0 }

// inBlocks rounds a length up to whole blocks.
func inBlocks(n int) int { return (n + blockSize - 1) / blockSize * blockSize }

// record is one record of a journal.
type record struct {
	number  uint64
	payload []byte
	at      int64 // where it begins in the journal
	blocks  int64 // its length, in bytes
}

// recordAt returns the record at a place in b. It returns false if there is no whole one of this
// epoch.
func (e epoch) recordAt(b []byte, at int64) (record, bool) {
	number, payload, ok := e.form().Read(b[at:])
	return record{number, payload, at, int64(inBlocks(frame.Header + len(payload)))}, ok
}

// mendAt flips one bit at a place in b, if that makes a record there of which each value has its
// checksum.
func (e epoch) mendAt(b []byte, at int64) (r record, ok bool) {
	head := append([]byte(magic), e[:]...)
	if distance(b[at:at+int64(len(head))], head) > 1 {
		return record{}, false
	}
	whole := func() bool {
		r, ok = e.recordAt(b, at)
		return ok && r.isSealed()
	}
	if flipped(b[at:at+frame.Header], whole) {
		return r, true
	}
	if n, ok := frame.Length(b[at:]); ok && n <= len(b)-int(at) {
		wrong := frame.Sum(b[at:int(at)+n]) ^ little.Uint32(b[at+frame.SumAt:])
		i, bit, found := flippedBy(wrong, n-frame.Header)
		if !found {
			return record{}, false
		}
		flip := &b[int(at)+frame.Header+i]
		if *flip ^= bit; whole() {
			return r, true
		}
		*flip ^= bit
	}
	return record{}, false
}

// isSealed reports whether each value of a record has its checksum.
func (r record) isSealed() bool {
	entries, err := decodeEntries(r.payload)
	for _, e := range entries {
		if e.value != nil && (!isSealed(e.value) || check(e.kind, e.key, e.value) != nil) {
			return false
		}
	}
	return err == nil
}

// replay returns the records that follow number folded, in their order, and lets the journal go on
// after the last of them. They are found by their numbers, wherever they are. A record that a crash
// cut off is not one. Damage is repaired if it is one bit, and reported otherwise.
func (j *journal) replay(folded uint64) (found []record, s Salvage, err error) {
	b := make([]byte, journalSize)
	if n, err := j.ReadAt(b, 0); err != nil && (!errors.Is(err, io.EOF) || n == 0) {
		return nil, s, fmt.Errorf("read the journal: %w", err)
	}
	for at := int64(0); at < journalSize; {
		r, ok := j.epoch.recordAt(b, at)
		if !ok {
			if r, ok = j.epoch.mendAt(b, at); ok && r.number > folded {
				s.Mended++
			}
		}
		if !ok {
			at += blockSize
			continue
		}
		at += r.blocks
		if r.number > folded {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b record) int { return cmp.Compare(a.number, b.number) })
	j.half, j.at = 0, 0
	want := folded + 1
	for _, r := range found {
		switch {
		case r.number == want+1:
			s.Lost = append(s.Lost, fmt.Sprintf("%s: record %d is damaged or not there", j.path, want))
		case r.number > want:
			s.Lost = append(s.Lost, fmt.Sprintf("%s: records %d to %d are damaged or not there", j.path, want, r.number-1))
		}
		want = r.number + 1
		j.half = r.at / halfSize
		j.at = r.at + r.blocks - j.half*halfSize
	}
	return found, s, nil
}

// entry is one key of the database with its new value; nil deletes it.
type entry struct {
	kind  Kind
	key   string
	value []byte
}

// encodeEntries appends the payload of a record to b.
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

// decodeEntries decodes the output of encodeEntries.
func decodeEntries(b []byte) (entries []entry, err error) {
	field := func() []byte {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			err, b = fmt.Errorf("%w: a record of its journal cannot be decoded", ErrDamaged), nil
			return nil
		}
		f := b[used : used+int(n)]
		b = b[used+int(n):]
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
