// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// records is everything that was loaded, each record by its kind and ID, as JSON.
func records(t *testing.T, all Loaded) map[string]string {
	t.Helper()
	said := map[string]string{}
	add := func(kind Kind, id string, record any) {
		b, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		said[string(kind)+" "+id] = string(b)
	}
	for _, r := range all.Containers {
		add(KindContainer, r.ID, []any{r.Container, r.Config, r.Status})
	}
	for _, r := range all.Sandboxes {
		add(KindSandbox, r.ID, []any{r.Sandbox, r.Config, r.Status})
	}
	return said
}

// aNode fills a store with pods and ends of all kinds, so that some of it is in the database alone,
// and some in the journal, and returns what is on record and the files. It is not closed, as after
// a kill, or it is.
func aNode(t *testing.T, closed bool) (said map[string]string, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 30 {
		sb, sbst := someSandbox(fmt.Sprintf("pod%02d", i))
		changes := []Change{NewSandbox(sb, sbst)}
		for j := range 2 {
			c, st := someContainer(fmt.Sprintf("c%02d-%d", i, j))
			c.PodID = sb.ID
			c.Config.Args = slices.Repeat([]string{"an argument"}, 1+i*j)
			st.Exit.Code = uint32(i)
			changes = append(changes, NewContainer(c, st))
		}
		if err := s.Commit(changes...); err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 {
			if err := s.Commit(DeleteContainer(fmt.Sprintf("c%02d-0", i-1))); err != nil {
				t.Fatal(err)
			}
		}
		if i == 20 {
			s.writing.Lock()
			if err := s.fold(false); err != nil {
				t.Fatal(err)
			}
			s.writing.Unlock()
		}
	}
	said = records(t, load(t, s))
	// The last record of a journal may be one that power cut off: this one says nothing.
	s.writing.Lock()
	err := s.put(nil)
	s.writing.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if closed {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	files = map[string][]byte{}
	for _, name := range []string{"berth.db", "berth.journal", "berth.owner"} {
		files[name] = read(t, filepath.Join(dir, name))
	}
	return said, files
}

// opened opens a copy of files in which one is another.
func opened(t *testing.T, files map[string][]byte, name string, b []byte) (*Store, error) {
	t.Helper()
	dir := t.TempDir()
	for n, content := range files {
		if n == name {
			content = b
		}
		if err := os.WriteFile(filepath.Join(dir, n), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Open(dir)
}

// PROPERTIES 63: one bit of what is on the disk changes. Nothing is lost, and no record is another
// one: the code of an end was another, or 0, because a field was there no more, and berth did not
// start.
func TestAFlippedBitChangesNothing(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	eachFile(t, 6, func(_ int, said map[string]string, files map[string][]byte, name, where string) {
		b := bytes.Clone(files[name])
		bit := r.IntN(8 * len(b))
		if name == "berth.db" && r.IntN(3) > 0 { // of what says where the records are
			page := r.IntN(len(b) / os.Getpagesize())
			bit = 8*page*os.Getpagesize() + r.IntN(8*200)
		}
		b[bit/8] ^= 1 << (bit % 8)
		expectAll(t, files, name, b, fmt.Sprintf("%s, bit %d", where, bit), said)
	})
}

// eachFile calls f so many times for each file of a node that was closed, and of one that was not;
// twenty times as often with BERTH_PICK=all.
func eachFile(t *testing.T, times int, f func(i int, said map[string]string, files map[string][]byte, name, where string)) {
	t.Helper()
	if os.Getenv("BERTH_PICK") == "all" {
		times *= 20
	}
	for _, closed := range []bool{true, false} {
		said, files := aNode(t, closed)
		for name := range files {
			for i := range times {
				f(i, said, files, name, fmt.Sprintf("%s, closed %v", name, closed))
			}
		}
	}
}

func expectAll(t *testing.T, files map[string][]byte, name string, b []byte, where string, said map[string]string) {
	t.Helper()
	for _, again := range []bool{false, true} {
		s, err := opened(t, files, name, b)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		all := load(t, s)
		if got := records(t, all); !maps.Equal(got, said) {
			t.Errorf("%s: %d records of %d, %v; %+v", where, len(got), len(said), differ(got, said), all.Damaged)
		}
		if owner := strings.TrimSpace(string(files["berth.owner"])); s.Owner() != owner {
			t.Errorf("%s: its owner is %q", where, s.Owner())
		}
		if again {
			c, st := someContainer("later")
			if err := s.Commit(NewContainer(c, st)); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		next, err := Open(filepath.Dir(s.path))
		if err != nil {
			t.Errorf("%s, opened again: %v", where, err)
			return
		}
		if d := next.Salvage(); d.Damaged() {
			t.Errorf("%s, opened again: %+v", where, d)
		}
		_ = next.Close()
	}
}

func differ(got, want map[string]string) (ids []string) {
	for id := range want {
		if got[id] != want[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// PROPERTIES 63: a file is cut off, or a page of it is overwritten. berth starts; what is on record
// is as it was written; what is not there any more is said, and costs the others nothing.
func TestWhatIsLeftOfAFileIsRead(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	eachFile(t, 10, func(i int, said map[string]string, files map[string][]byte, name, where string) {
		b := bytes.Clone(files[name])
		if page := os.Getpagesize(); i%2 == 0 && len(b) > 3*page {
			at := (2 + r.IntN(len(b)/page-2)) * page
			copy(b[at:], bytes.Repeat([]byte{0xa5}, page))
			where += fmt.Sprintf(", page %d", at/page)
		} else {
			b = b[:r.IntN(len(b))]
			where += fmt.Sprintf(", cut at %d", len(b))
		}
		s, err := opened(t, files, name, b)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		all := load(t, s)
		got := records(t, all)
		if missing := len(differ(got, said)) - len(all.Damaged); missing > 0 && len(s.Salvage().Lost) == 0 {
			t.Errorf("%s: %d records are not there, and nothing is said", where, missing)
		}
		if len(s.Salvage().Lost) == 0 && len(got)+len(all.Damaged) < len(said) {
			t.Errorf("%s: %d records of %d", where, len(got), len(said))
		}
		for id, record := range got {
			// What only the journal had may be as it was before.
			if record != said[id] && len(s.Salvage().Lost) == 0 {
				t.Errorf("%s: %s is %s", where, id, record)
			}
		}
		if owner := strings.TrimSpace(string(files["berth.owner"])); s.Owner() != owner {
			t.Errorf("%s: its owner is %q", where, s.Owner())
		}
		_ = s.Close()
	})
}

// Another file in the place of the database is not written over.
func TestAnotherFileIsRefusedInWords(t *testing.T) {
	dir := t.TempDir()
	text := bytes.Repeat([]byte("text\n"), 5000)
	if err := os.WriteFile(filepath.Join(dir, "berth.db"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("it is opened: %v", err)
	}
	if !bytes.Equal(read(t, filepath.Join(dir, "berth.db")), text) {
		t.Error("it was written")
	}
}

// PROPERTIES 63: an earlier berth writes its values without a checksum. One that has lost a field
// is damaged, and an exit without a code is not one with the code 0.
func TestAnExitWithoutACodeIsDamaged(t *testing.T) {
	_, st := someContainer("c1")
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"code", "measured", "origin", "exit", "phase"} {
		s := open(t, t.TempDir())
		c, _ := someContainer("c1")
		intent, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		name := flippedIn(field)
		put(t, s, KindContainer, map[string][]byte{"c1/intent": intent, "c1/status": bytes.Replace(b, []byte(`"`+field+`"`), []byte(`"`+name+`"`), 1)})
		if all := load(t, s); len(all.Damaged) != 1 || len(all.Containers) != 0 {
			t.Errorf("%s for %s: %+v", name, field, all)
		}
	}
}

// flippedIn flips a bit in the middle of a name.
func flippedIn(name string) string {
	b := []byte(name)
	b[len(b)/2] ^= 1
	return string(b)
}

// What an earlier berth has written since this one did is not damage.
func TestAnEarlierBerthWritesWithoutChecksums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	c, st := someContainer("c1")
	if err := s.Commit(NewContainer(c, st)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	status, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, KindContainer, map[string][]byte{"c1/status": status})
	if err := s.db.Update(func(tx *bbolt.Tx) error { // as one that was killed, and so has a journal
		return errors.Join(tx.Bucket(bucketMeta).Put(keyVersion, []byte("3")), tx.Bucket(bucketMeta).Put(keyEpoch, []byte("0102030405060708")), putFolded(tx, 7))
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = s.db.Close()
		s = open(t, dir)
		if all := load(t, s); s.Salvage().Damaged() || len(all.Containers) != 1 || len(all.Damaged) != 0 {
			t.Errorf("%+v %+v", s.Salvage(), all)
		}
		c2, st2 := someContainer("c2")
		if err := s.Commit(NewContainer(c2, st2)); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		s = open(t, dir)
		if all := load(t, s); s.Salvage().Damaged() || len(all.Containers) != 2 {
			t.Errorf("%+v %+v", s.Salvage(), all)
		}
		if err := s.Commit(DeleteContainer("c2")); err != nil {
			t.Fatal(err)
		}
	}
}

// PROPERTIES 63: an earlier berth that ends cleanly leaves the bucket meta as it found it, and its
// checksum right. The sum of the checksums of all records, which it does not know, was that of
// before its time: the records were taken for others than those that were written last, earlier
// pages for the right ones, and pods that ran for none of this berth's.
func TestWhatAnEarlierBerthHasWrittenAndClosedIsNotDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for pods := range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		for part := range 2 { // so that the file has earlier pages
			written := map[string][]byte{}
			for i := range 20 {
				c, st := someContainer(fmt.Sprintf("c%d-%02d", pods, part*20+i))
				status, err := json.Marshal(st)
				if err != nil {
					t.Fatal(err)
				}
				intent, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				written[c.ID+"/status"], written[c.ID+"/intent"] = status, intent
			}
			put(t, s, KindContainer, written)
		}
		_ = s.db.Close()
		s = open(t, dir)
		if all := load(t, s); s.Salvage().Damaged() || len(all.Containers) != 40*(pods+1) || len(all.Damaged) != 0 {
			t.Fatalf("%+v, %d containers, %+v", s.Salvage(), len(all.Containers), all.Damaged)
		}
		c, st := someContainer("c0-00") // this berth writes one, too
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
	}
}

// PROPERTIES 63: a damaged database that cannot be written anew is refused in words, unless values
// alone are damaged. bbolt panics at what it cannot read, in a goroutine of its own, which ended
// berth.
func TestADamagedDatabaseThatCannotBeWrittenEndsNobody(t *testing.T) {
	_, files := aNode(t, true)
	page := os.Getpagesize()
	refused := 0
	for at := 2 * page; at < len(files["berth.db"]); at += page {
		for _, byteOf := range []int{8, 10, pageHeader + 4, pageHeader + 8, pageHeader + 12} {
			dir := t.TempDir()
			b := bytes.Clone(files["berth.db"])
			b[at+byteOf] ^= 0x40
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "berth.db.new", "taken"), 0o700), os.WriteFile(filepath.Join(dir, "berth.db"), b, 0o600)); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir)
			switch {
			case err == nil:
				_ = s.Close()
			case errors.Is(err, ErrDamaged):
				refused++
			default:
				t.Errorf("page %d, byte %d: %v", at/page, byteOf, err)
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the test proves nothing")
	}
}
