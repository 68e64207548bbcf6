// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/frame"
)

const (
	// segments is how many segments a ring that is full has, about.
	segments = 16
	// minSegment is the least size of a segment: it has to take what is carried over.
	minSegment = 64 << 10
	suffix     = ".rec"
	// maxRecords bounds what is believed of the numbers in a segment.
	maxRecords = 1 << 24
	// maxOpening bounds how far a bit of an opening is looked for.
	maxOpening = 64
)

// ring is the segments on the disk. One goroutine writes; what it changes is guarded by mu, which
// is not held while the disk is asked.
type ring struct {
	dir     string
	clock   *clock.Clock
	size    int64 // of one segment
	maxSize int64 // of all

	file     *os.File // of the last segment; nil: the next write makes one
	unsynced []string // what else has to be synced: the directory, and a segment that was torn

	mu     sync.Mutex
	list   []*segment // oldest first
	synced uint64     // a power cut leaves the records with lower numbers
}

// segment is a file of records with ascending numbers.
type segment struct {
	path    string
	form    frame.Form
	first   uint64        // the number of the first record with an entry is this one, or higher
	bytes   int64         // how much of the file has whole records
	began   clock.Instant // of the first entry
	newest  clock.Instant // of the last entry
	offsets []uint32      // where record first+i begins; 0: it is not here
	whole   bool          // it ends where the last record does, and is of this format
}

func newRing(dir string, size int64, c *clock.Clock) *ring {
	return &ring{dir: dir, clock: c, size: max(size/segments, minSegment), maxSize: size}
}

// open finds the segments, and reads the last one, so that the numbers go on.
func (g *ring) open() error {
	names, err := os.ReadDir(g.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range names {
		digits, ok := strings.CutSuffix(e.Name(), suffix)
		first, err := strconv.ParseUint(digits, 10, 64)
		if !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		s := &segment{path: filepath.Join(g.dir, e.Name()), first: first}
		if st, err := e.Info(); err == nil { // until it is read
			s.bytes, s.newest = st.Size(), g.clock.Instant(st.ModTime())
		}
		g.list = append(g.list, s)
	}
	slices.SortFunc(g.list, func(a, b *segment) int { return strings.Compare(a.path, b.path) })
	if len(g.list) == 0 {
		return nil
	}
	last := g.list[len(g.list)-1]
	_ = last.scan(nil) // why it is not whole is said when all are read
	if !last.whole {
		g.unsynced = append(g.unsynced, last.path)
		return nil
	}
	g.file, err = os.OpenFile(last.path, os.O_RDWR, 0)
	return err
}

// next returns the number that follows those in the ring.
func (g *ring) next() uint64 {
	if len(g.list) == 0 {
		return 1
	}
	last := g.list[len(g.list)-1]
	if last.whole {
		return last.first + uint64(len(last.offsets))
	}
	// No more records can be in what was not read of it.
	return last.first + uint64(max(last.bytes, g.size))/frame.Header + uint64(len(last.offsets)) + 1
}

// writes returns which segment is written, by its first number; 0 if the next write makes one.
func (g *ring) writes() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) == 0 {
		return 0
	}
	return g.list[len(g.list)-1].first
}

// oldest returns the lowest number that may be in the ring, or 0 if it is empty.
func (g *ring) oldest() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) == 0 {
		return 0
	}
	return g.list[0].first
}

// before returns a number below which all records in the ring are older than an instant.
func (g *ring) before(t clock.Instant) (number uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.list {
		if !s.newest.Before(t) {
			break
		}
		number = s.first + uint64(len(s.offsets))
	}
	return number
}

// all returns the segments.
func (g *ring) all() []*segment {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list)
}

// learn takes over what was read of a segment. The last one has grown meanwhile.
func (g *ring) learn(s, read *segment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !read.began.IsZero() {
		s.began = read.began
	}
	if len(s.offsets) == 0 {
		s.form, s.offsets = read.form, read.offsets
		if !read.newest.IsZero() {
			s.newest = read.newest
		}
	}
}

// errFormat is the error for a segment of another format.
var errFormat = errors.New("another berth wrote it, in a format that this one does not read")

// scan reads the segment and calls each with its records, if it is not nil. It sets what the
// segment is known to have. It returns why the rest of the file cannot be read.
func (s *segment) scan(each func(number uint64, payload []byte)) error {
	b, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	s.offsets, s.whole = nil, false
	at, err := s.begin(b)
	if err != nil {
		return err
	}
	damaged, mark := 0, append([]byte(magic), s.form.Epoch[:]...)
	for at < len(b) {
		number, payload, ok := s.form.Read(b[at:])
		if !ok || number < s.first+uint64(len(s.offsets)) || number-s.first > maxRecords {
			next := bytes.Index(b[at+1:], mark) + 1
			if next == 0 {
				next = len(b) - at
			}
			damaged, at = damaged+next, at+next
			continue
		}
		s.place(number, int64(at))
		if each != nil {
			each(number, payload)
		}
		at += frame.Header + len(payload)
	}
	s.bytes, s.whole = int64(at), damaged == 0
	if damaged > 0 {
		return fmt.Errorf("%d of its %d bytes are torn or damaged", damaged, len(b))
	}
	return nil
}

// begin reads the opening of a segment, in which it puts right one bit, and returns its length.
func (s *segment) begin(b []byte) (length int, err error) {
	read := func() bool {
		s.form = formOf(b)
		_, payload, ok := s.form.Read(b)
		length = frame.Header + len(payload)
		var o opening
		if err = nil; json.Unmarshal(payload, &o) != nil || o.Format != format {
			err = errFormat
		}
		return ok
	}
	if read() {
		return length, err
	}
	for bit := range 8 * min(maxOpening, len(b)) {
		b[bit/8] ^= 1 << (bit % 8)
		if read() {
			return length, err
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	return 0, errors.New("its beginning is damaged")
}

// place notes where a record is.
func (s *segment) place(number uint64, at int64) {
	for s.first+uint64(len(s.offsets)) < number {
		s.offsets = append(s.offsets, 0)
	}
	s.offsets = append(s.offsets, uint32(at))
}

// append writes items behind the last record, and makes a segment where there is none, or where the
// last one is full or too old. After an error nothing counts as written.
func (g *ring) append(items []item, maxAge time.Duration) (turned bool, err error) {
	var s *segment
	if len(g.list) > 0 {
		s = g.list[len(g.list)-1]
	}
	if g.file == nil || s.bytes >= g.size || g.aged(s, maxAge) {
		if s, err = g.turn(items[0].number); err != nil {
			return false, err
		}
		turned = true
	}
	var b []byte
	offsets := make([]int64, 0, len(items))
	for _, it := range items {
		offsets = append(offsets, s.bytes+int64(len(b)))
		b = s.form.Append(b, it.number, it.payload)
	}
	if _, err := g.file.WriteAt(b, s.bytes); err != nil {
		return turned, err // the next write begins at the same place
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, it := range items {
		s.place(it.number, offsets[i])
	}
	s.bytes += int64(len(b))
	if s.began.IsZero() {
		s.began = items[0].at
	}
	s.newest = items[len(items)-1].at
	return turned, nil
}

// aged reports whether a segment has entries of so long a time that another one is begun.
func (g *ring) aged(s *segment, maxAge time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !s.began.IsZero() && g.clock.Age(s.began) > maxAge/segments*2
}

// turn begins a new segment. What the one before has goes onto the disk.
func (g *ring) turn(first uint64) (*segment, error) {
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return nil, err
	}
	s := &segment{path: filepath.Join(g.dir, fmt.Sprintf("%020d%s", first, suffix)), first: first, whole: true}
	s.form.Magic = magic
	_, _ = rand.Read(s.form.Epoch[:]) // never fails
	head, err := json.Marshal(opening{format})
	if err != nil {
		return nil, err
	}
	b := s.form.Append(nil, first, head)
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(b); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(s.path))
	}
	s.bytes = int64(len(b))
	if g.file != nil {
		_ = errors.Join(g.file.Sync(), g.file.Close()) // what it has can be read until a power cut
	}
	g.file = f
	g.unsynced = append(g.unsynced, g.dir)
	g.mu.Lock()
	g.list = append(g.list, s)
	g.mu.Unlock()
	return s, nil
}

// excess returns the oldest segment if there is too much, or if it is too old, and the number that
// the next one begins with.
func (g *ring) excess(maxAge time.Duration) (next uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) < 2 {
		return 0, false
	}
	total := int64(0)
	for _, s := range g.list {
		total += s.bytes
	}
	return g.list[1].first, total > g.maxSize-g.size || g.clock.Age(g.list[0].newest) > maxAge
}

// drop deletes the oldest segment.
func (g *ring) drop() error {
	g.mu.Lock()
	s := g.list[0]
	g.mu.Unlock()
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = slices.Delete(slices.Clone(g.list), 0, 1)
	return nil
}

// has reports whether a power cut leaves a record, whose number was given.
func (g *ring) has(number uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return number < g.synced
}

// sync puts onto the disk what was written.
func (g *ring) sync() error {
	if g.file == nil {
		return nil
	}
	last := g.list[len(g.list)-1]
	end := last.first + uint64(len(last.offsets))
	if len(g.unsynced) == 0 && g.has(end-1) {
		return nil
	}
	if err := g.file.Sync(); err != nil {
		return err
	}
	for _, path := range g.unsynced {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	g.unsynced = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	g.synced = end
	return nil
}

func (g *ring) close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}

// span is where a record is.
type span struct {
	path   string
	form   frame.Form
	number uint64
	at     int64
}

// find returns where the records with some numbers are. Those that are in no segment are left out.
func (g *ring) find(numbers []uint64) (spans []span) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range numbers {
		i, ok := slices.BinarySearchFunc(g.list, n, func(s *segment, n uint64) int {
			switch {
			case s.first > n:
				return 1
			case s.first == n:
				return 0
			}
			return -1
		})
		if !ok {
			i--
		}
		if i < 0 {
			continue
		}
		s := g.list[i]
		if k := n - s.first; k < uint64(len(s.offsets)) && s.offsets[k] != 0 {
			spans = append(spans, span{s.path, s.form, n, int64(s.offsets[k])})
		}
	}
	return spans
}

// read returns the payloads of records, by their numbers. One that cannot be read is left out: its
// segment may just have been dropped.
func read(spans []span) map[uint64][]byte {
	found := map[uint64][]byte{}
	var f *os.File
	for _, s := range spans {
		if f == nil || f.Name() != s.path {
			if f != nil {
				_ = f.Close()
			}
			var err error
			if f, err = os.Open(s.path); err != nil {
				f = nil
				continue
			}
		}
		b := make([]byte, 1024) // most records are shorter
		n, _ := f.ReadAt(b, s.at)
		if want, ok := frame.Length(b[:n]); ok && want > n && want <= frame.Header+maxPayload {
			b = make([]byte, want)
			n, _ = f.ReadAt(b, s.at)
		}
		if number, payload, ok := s.form.Read(b[:n]); ok && number == s.number {
			found[number] = payload
		}
	}
	if f != nil {
		_ = f.Close()
	}
	return found
}
