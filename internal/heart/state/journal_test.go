// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/base/frame"
)

// memory is a device in memory.
type memory []byte

func (m memory) ReadAt(b []byte, at int64) (int, error)  { return copy(b, m[at:]), nil }
func (m memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }
func (m memory) Close() error                            { return nil }

// replayed is what a berth that starts finds in m. The error is about what is lost.
func replayed(m memory, e epoch, folded uint64) ([][]byte, error) {
	j := &journal{device: m, epoch: e}
	records, damage, err := j.replay(folded)
	var payloads [][]byte
	for _, r := range records {
		payloads = append(payloads, r.payload)
	}
	if damage.Damaged() {
		err = errors.Join(err, ErrDamaged)
	}
	return payloads, err
}

// tooLong is a key that the database does not take.
var tooLong = entryKey{KindContainer, strings.Repeat("x", bbolt.MaxKeySize+1)}

// healed takes tooLong out of what is to be folded.
func (l *log) healed() {
	delete(l.pending, tooLong)
	delete(l.sealed, tooLong)
}

// PROPERTIES 11: power is cut at some byte of a write to the journal, at each of its header, be it
// that the bytes before it are on the disk, or those after it. What was committed before is there;
// what was being written is whole or not there at all.
func TestPowerIsCutWhileARecordIsWritten(t *testing.T) {
	e := epoch{1, 2, 3}
	for _, earlier := range []string{"zeros", "records of before"} {
		m := make(memory, journalSize)
		j := &journal{device: m, epoch: e}
		folded := uint64(0)
		if earlier == "records of before" {
			for range 2 {
				for j.append(folded+1, bytes.Repeat([]byte{byte(folded)}, 5000)) == nil {
					folded++
				}
				j.turn()
			}
		}
		if err := j.append(folded+1, []byte("first")); err != nil {
			t.Fatal(err)
		}
		before, at := bytes.Clone(m), j.at
		payload := bytes.Repeat([]byte("second"), 800)
		if err := j.append(folded+2, payload); err != nil {
			t.Fatal(err)
		}
		for n := 0; n <= int(j.at-at); n += 1 + n/frame.Header {
			for name, written := range map[string][2]int64{"up to": {at, at + int64(n)}, "from": {at + int64(n), j.at}} {
				torn := memory(bytes.Clone(before))
				copy(torn[written[0]:written[1]], m[written[0]:written[1]])
				got, err := replayed(torn, e, folded)
				if err != nil || len(got) < 1 || len(got) > 2 || string(got[0]) != "first" || len(got) == 2 && !bytes.Equal(got[1], payload) {
					t.Fatalf("%s, %s byte %d: %d records, %v", earlier, name, n, len(got), err)
				}
				if whole := written == [2]int64{at, j.at}; whole && len(got) != 2 {
					t.Fatalf("%s: the whole record is not there", earlier)
				}
			}
		}
	}
}

// PROPERTIES 63: a record that was committed and cannot be read any more is not mistaken for one
// that was cut off.
func TestADamagedRecordOfTheJournalIsNamed(t *testing.T) {
	e := epoch{7}
	m := make(memory, journalSize)
	j := &journal{device: m, epoch: e}
	for i := range 5 {
		if err := j.append(uint64(i+1), bytes.Repeat([]byte{9}, 4000*i)); err != nil {
			t.Fatal(err)
		}
	}
	last := j.at - 5*blockSize // the last record has 16000 bytes, and a header
	for at := int64(0); at < j.at; at += 97 {
		damaged := memory(bytes.Clone(m))
		damaged[at] ^= 1
		got, err := replayed(damaged, e, 0)
		inPadding := bytes.Equal(m[at:at+1], []byte{0}) && err == nil && len(got) == 5
		if at < last && !inPadding && !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: %d records, %v", at, len(got), err)
		}
	}
	if got, err := replayed(m, e, 5); len(got) != 0 || err != nil {
		t.Errorf("all is in the database: %d records, %v", len(got), err)
	}
	if got, err := replayed(m, e, 3); len(got) != 2 || err != nil {
		t.Errorf("a part is in the database: %d records, %v", len(got), err)
	}
	if got, err := replayed(m, epoch{8}, 0); len(got) != 0 || err != nil {
		t.Errorf("of another epoch: %d records, %v", len(got), err)
	}
}

// faulty is a device that fails, after it wrote a part of what it was given.
type faulty struct {
	device
	r     *rand.Rand
	fails bool
}

func (f *faulty) WriteAt(b []byte, at int64) (int, error) {
	if !f.fails {
		return f.device.WriteAt(b, at)
	}
	for n := 0; n < len(b); n += 512 {
		if f.r.IntN(3) > 0 {
			_, _ = f.device.WriteAt(b[n:n+512], at+int64(n))
		}
	}
	return 0, unix.EIO
}

// killed is a copy of what s has on disk, as kill -9 leaves it.
func killed(t *testing.T, s *Store) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"berth.db", "berth.journal"} {
		if err := os.WriteFile(filepath.Join(dir, name), read(t, filepath.Join(filepath.Dir(s.path), name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Commits at random, in the course of which the journal is filled and folded, and fails at some
// time. After each, a berth that was killed finds exactly what was committed.
func TestWhatIsCommittedIsFoundByTheNextBerth(t *testing.T) {
	r := seeded(t)
	s := open(t, t.TempDir())
	is := map[string]bool{}
	for i := range 400 {
		if i == 300 {
			s.writing.Lock()
			s.log.journal.device = &faulty{s.log.journal.device, r, true}
			s.writing.Unlock()
		}
		var changes []Change
		changes, is = randomChanges(r, is)
		if err := s.Commit(changes...); err != nil {
			t.Fatal(err)
		}
		if r.IntN(8) > 0 && i != 300 {
			continue
		}
		s.folding.Wait()
		next := open(t, killed(t, s))
		if got := containers(t, next); !maps.Equal(got, is) {
			t.Fatalf("commit %d: %v is there, not %v", i, got, is)
		}
		if r.IntN(4) > 0 || i >= 300 {
			if err := next.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = next // goes on with what it found
	}
}

// An error of the journal's disk that passed cost two syncs for each commit until berth was started
// again.
func TestTheJournalIsWrittenAgainAfterAnErrorThatPassed(t *testing.T) {
	s := open(t, t.TempDir())
	commit := func(id string) (inJournal bool) {
		t.Helper()
		c, st := someContainer(id)
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
		return len(s.log.pending) > 0
	}
	commit("c1") // begins the epoch
	if !commit("c2") {
		t.Fatal("a commit is not in the journal")
	}
	disk := &faulty{s.log.journal.device, seeded(t), true}
	s.log.journal.device = disk
	if commit("c3") {
		t.Fatal("a commit is in a journal that fails")
	}
	disk.fails = false
	if commit("c4") {
		t.Error("the journal was not left alone")
	}
	s.log.retryAt = time.Now()
	if !commit("c5") || !commit("c6") {
		t.Error("a commit is not in the journal, which is well again")
	}
	if got := containers(t, open(t, killed(t, s))); len(got) != 6 {
		t.Errorf("found by the next: %v", got)
	}
}

// The journal's disk fails now and then, for a while, also together with the database. After a
// commit a berth that was killed finds exactly what was committed.
func TestAJournalThatFailsNowAndThenLosesNothing(t *testing.T) {
	r := seeded(t)
	s := open(t, t.TempDir())
	disk := &faulty{r: r}
	is := map[string]bool{}
	again := 0
	for i := range 200 {
		s.writing.Lock()
		if s.log.open && disk.device == nil {
			disk.device = s.log.journal.device
			s.log.journal.device = disk
		}
		if disk.device != nil && r.IntN(4) == 0 {
			disk.fails = !disk.fails
		}
		if r.IntN(2) == 0 {
			s.log.retryAt = time.Time{}
		}
		neither := disk.fails && r.IntN(4) == 0
		if neither {
			s.log.pending[tooLong] = []byte("{}")
		}
		wasBroken := s.log.broken
		s.writing.Unlock()
		changes, after := randomChanges(r, is)
		err := s.Commit(changes...)
		s.folding.Wait()
		s.writing.Lock()
		s.log.healed()
		if wasBroken && !s.log.broken {
			again++
		}
		s.writing.Unlock()
		if err != nil {
			if !neither {
				t.Fatal(err)
			}
			continue // what a berth that is killed now finds is not known: the disk did not say
		}
		is = after
		if r.IntN(8) > 0 {
			continue
		}
		next := open(t, killed(t, s))
		if got := containers(t, next); !maps.Equal(got, is) {
			t.Fatalf("commit %d: %v is there, not %v", i, got, is)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if again == 0 {
		t.Error("the journal was never written again")
	}
}

// The journal and the database both fail: the commit is refused, and nothing of it is visible. Once
// the database can be written again, so can everything.
func TestACommitThatNeitherFileTakesIsRefused(t *testing.T) {
	s := open(t, t.TempDir())
	commit := func(id string) error {
		c, st := someContainer(id)
		return s.Commit(NewContainer(c, st))
	}
	for _, id := range []string{"c1", "c2"} { // the second is in the journal
		if err := commit(id); err != nil {
			t.Fatal(err)
		}
	}
	s.log.journal.device = &faulty{s.log.journal.device, seeded(t), true}
	s.log.pending[tooLong] = []byte("{}")
	if err := commit("c3"); !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v", err)
	}
	s.log.healed()
	if got := containers(t, s); !maps.Equal(got, map[string]bool{"c1": true, "c2": true}) {
		t.Errorf("visible: %v", got)
	}
	if err := commit("c4"); err != nil {
		t.Fatal(err)
	}
	if got := containers(t, open(t, killed(t, s))); !maps.Equal(got, map[string]bool{"c1": true, "c2": true, "c4": true}) {
		t.Errorf("found by the next: %v", got)
	}
}

// The database hangs in the midst of a fold, and no commit waits for it, as long as there is room
// in the other half. (Before the journal had halves, this test hung.)
func TestNoCommitWaitsForAFold(t *testing.T) {
	s := open(t, t.TempDir())
	want := map[string]bool{}
	commit := func() {
		t.Helper()
		c, st := someContainer(fmt.Sprint("c", len(want)))
		want[c.ID] = true
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
	}
	commit() // begins the epoch
	hanging, err := s.db.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	for s.log.sealed == nil { // nobody else changes it while the database hangs
		commit()
	}
	for range halfSize / blockSize / 2 {
		commit()
	}
	if got := containers(t, s); !maps.Equal(got, want) {
		t.Errorf("visible: %v", got)
	}
	if err := hanging.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.folding.Wait()
	if s.log.sealed != nil {
		t.Error("the full half was not folded")
	}
	for range 2 * journalSize / blockSize { // each half again and again
		commit()
	}
	if got := containers(t, open(t, killed(t, s))); !maps.Equal(got, want) {
		t.Errorf("found by the next: %d of %d", len(got), len(want))
	}
}

// A fold that was about to begin while a commit folded everything does not bring back what is
// older.
func TestAFoldThatComesLateChangesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	s.log.folding = true // so that only this test folds
	c, st := someContainer("c")
	for _, change := range []Change{NewContainer(c, st), ContainerStatus("c", st), DeleteContainer("c")} {
		if err := s.Commit(change); err != nil {
			t.Fatal(err)
		}
		if change.status != nil && change.intent == nil {
			s.log.turn() // the record is sealed, its deletion is not
		}
	}
	late := s.log.sealed
	if err := s.fold(false); err != nil {
		t.Fatal(err)
	}
	s.log.sealed = late // as the fold that comes late has read it
	s.foldBeside()
	s.log.sealed = nil
	if got := containers(t, s); len(got) != 0 {
		t.Errorf("a record that was deleted is back: %v", got)
	}
}

// A berth without halves was killed: its one run of records, across the middle of the journal, is
// read, and the next commit makes a journal with halves of it.
func TestTheJournalOfAnEarlierBerthIsRead(t *testing.T) {
	first := open(t, t.TempDir())
	c, st := someContainer("c0")
	if err := first.Commit(NewContainer(c, st)); err != nil {
		t.Fatal(err)
	}
	dir, want := killed(t, first), map[string]bool{"c0": true}
	file, err := os.OpenFile(filepath.Join(dir, "berth.journal"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at, number := int64(0), uint64(1); at < halfSize+9*blockSize; number++ {
		c.ID = fmt.Sprint("c", number)
		want[c.ID] = true
		w, err := NewContainer(c, st).encode()
		if err != nil {
			t.Fatal(err)
		}
		w.statusJSON = append(w.statusJSON, bytes.Repeat([]byte(" "), 5000)...) // so that one lies across the middle
		j := &journal{device: offset{file, at}, epoch: first.log.journal.epoch}
		if err := j.append(number, encodeEntries(nil, w.entries())); err != nil {
			t.Fatal(err)
		}
		at += j.at
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(dir, "berth.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, []byte("2")) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if got := containers(t, s); !maps.Equal(got, want) {
		t.Fatalf("%d of %d are there", len(got), len(want))
	}
	for _, id := range []string{"new1", "new2"} {
		c.ID = id
		want[id] = true
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
		if got := containers(t, open(t, killed(t, s))); !maps.Equal(got, want) {
			t.Fatalf("%d of %d are there after %s", len(got), len(want), id)
		}
	}
	if v := version(t, s); v != "3" {
		t.Errorf("version %s after a commit", v)
	}
}

// offset is a device that begins somewhere in another one.
type offset struct {
	device
	by int64
}

func (o offset) WriteAt(b []byte, at int64) (int, error) { return o.device.WriteAt(b, o.by+at) }

// A record that is larger than the journal, and a journal that cannot be made.
func TestTheDatabaseTakesWhatTheJournalCannot(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "berth.journal"), 0o700); err != nil { // so that it cannot be made
		t.Fatal(err)
	}
	for _, dir := range []string{dir, t.TempDir()} {
		s := open(t, dir)
		for i := range 3 {
			c, st := someContainer(fmt.Sprint("c", i))
			if i == 1 {
				c.Config.Args = []string{string(bytes.Repeat([]byte("a"), journalSize))}
			}
			if err := s.Commit(NewContainer(c, st)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(containers(t, s)); n != 3 {
			t.Errorf("%d containers", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(containers(t, open(t, dir))); n != 3 {
			t.Errorf("%d containers, later", n)
		}
	}
}

// version is what an older berth looks at.
func version(t *testing.T, s *Store) (v string) {
	t.Helper()
	if err := s.db.View(func(tx *bbolt.Tx) error {
		v = string(tx.Bucket(bucketMeta).Get(keyVersion))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return v
}

// A berth that knows no journal refuses a database that one belongs to, and reads one that was
// closed. A copy of that alone is complete, whatever journal lies beside it.
func TestADatabaseThatWasClosedNeedsNoJournal(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	want := map[string]bool{}
	for i := range 20 {
		c, st := someContainer(fmt.Sprint("c", i))
		want[c.ID] = true
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
	}
	if v := version(t, s); v != "3" {
		t.Errorf("version %s while it is open", v)
	}
	stale := read(t, filepath.Join(dir, "berth.journal"))
	left := killed(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	closed := read(t, s.path)
	for name, journal := range map[string][]byte{"none": nil, "its own": stale, "another file": []byte("text")} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "berth.db"), closed, 0o600); err != nil {
			t.Fatal(err)
		}
		if journal != nil {
			if err := os.WriteFile(filepath.Join(dir, "berth.journal"), journal, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, dir)
		if v := version(t, s); v != "1" {
			t.Errorf("version %s after it was closed", v)
		}
		if got := containers(t, s); !maps.Equal(got, want) {
			t.Errorf("with %s: %v", name, got)
		}
	}
	if err := os.Remove(filepath.Join(left, "berth.journal")); err != nil {
		t.Fatal(err)
	}
	if s := open(t, left); len(s.Salvage().Lost) != 1 || len(containers(t, s)) == 0 {
		t.Errorf("killed, and its journal removed: %+v", s.Salvage())
	}
}

// Whatever is in the journal, Open neither panics nor makes up a record.
func FuzzJournal(f *testing.F) {
	e := epoch{1}
	m := make(memory, journalSize)
	j := &journal{device: m, epoch: e}
	for i := range 3 {
		if err := j.append(uint64(i+1), encodeEntries(nil, []entry{{KindSandbox, "a/status", []byte("x")}, {KindContainer, "b/intent", nil}})); err != nil {
			f.Fatal(err)
		}
	}
	f.Add([]byte(m[:j.at]), uint64(0))
	f.Add([]byte(m[:j.at-1]), uint64(2))
	f.Add([]byte(nil), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, folded uint64) {
		m := make(memory, journalSize)
		copy(m, b)
		payloads, err := replayed(m, e, folded)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		for _, p := range append(payloads, b) {
			entries, err := decodeEntries(p)
			if err == nil && len(entries) > 0 {
				if again, err := decodeEntries(encodeEntries(nil, entries)); err != nil || len(again) != len(entries) {
					t.Fatalf("%v: %v", entries, err)
				}
			}
		}
	})
}
