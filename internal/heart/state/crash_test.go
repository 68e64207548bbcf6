// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// A commit that returned is there after kill -9, whatever the others were doing (PROPERTIES 4).
func TestACommitThatReturnedSurvivesKill9(t *testing.T) {
	if dir := os.Getenv("STATE_TEST_DIR"); dir != "" {
		commitForEver(dir)
		return
	}
	for round := range 5 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestACommitThatReturnedSurvivesKill9$")
		cmd.Env = append(os.Environ(), "STATE_TEST_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		committed := map[string]bool{}
		for range 50 * (round + 1) {
			var id string
			if _, err := fmt.Fscanln(out, &id); err != nil {
				t.Fatal(err)
			}
			committed[id] = true
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		all := load(t, open(t, dir))
		if len(all.Damaged) != 0 {
			t.Fatal(all.Damaged)
		}
		for _, c := range all.Containers {
			if c.Status.Exit.Code != 42 {
				t.Errorf("%s: half a record", c.ID)
			}
			delete(committed, c.ID)
		}
		if len(committed) != 0 {
			t.Fatalf("round %d: committed but gone: %v", round, committed)
		}
	}
}

func commitForEver(dir string) {
	s, err := Open(dir)
	if err != nil {
		panic(err)
	}
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				c, st := someContainer(fmt.Sprintf("w%d-%d", w, i))
				if err := s.Commit(NewContainer(c, st)); err != nil {
					panic(err)
				}
				fmt.Println(c.ID)
			}
		}()
	}
	select {}
}

// A crash at any write of a commit leaves the records as they were before it or as they are after
// it (PROPERTIES 4, PROPERTIES 11).
//
// A commit either writes a record to the journal, in one write, of which a crash leaves any
// sectors; or it is a transaction of bbolt's, which writes the changed pages in any order, syncs,
// writes one of the two meta pages, and syncs. So the states that a crash can leave of the latter
// are: the file before with some of the changed pages, one of them perhaps half written; and with
// all of them and a part of the meta page.
func TestACrashAtAnyWriteOfACommitLeavesItWholeOrUndone(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for _, withJournal := range []bool{true, false} {
		dir, scratch := t.TempDir(), t.TempDir()
		s := open(t, dir)
		s.log.folding = true // so that it folds only where this test does
		if !withJournal {
			_ = s.log.close()
		}
		// bbolt writes with pwrite(2) and reads through a mapping of the same file, so a copy of
		// the file between two commits is what the disk has then.
		before, was := disk(t, s), map[string]bool{}
		for i := range 20 {
			is := was
			switch {
			case i%13 == 12:
				s.foldBeside()
				s.log.folding = true
			case i%13 == 7 && s.log.open && s.log.sealed == nil: // the commits go on in the other half
				s.log.turn()
				fallthrough
			default:
				var changes []Change
				changes, is = randomChanges(r, was)
				if err := s.Commit(changes...); err != nil {
					t.Fatal(err)
				}
			}
			after := disk(t, s)
			if !bytes.Equal(before.db, after.db) && !bytes.Equal(before.journal, after.journal) {
				t.Fatalf("commit %d writes both files", i)
			}
			for name, img := range crashes(r, before, after) {
				got := reopen(t, scratch, img.files)
				if img.whole && !maps.Equal(got, is) || !maps.Equal(got, is) && !maps.Equal(got, was) {
					t.Fatalf("commit %d, %s: %v is there; before: %v, after: %v", i, name, got, was, is)
				}
				if img.undone && !maps.Equal(got, was) {
					t.Fatalf("commit %d, %s: %v is there, which was not synced; before: %v", i, name, got, was)
				}
			}
			before, was = after, is
		}
	}
}

// seeded returns a source of random numbers. Its seed is printed, and taken from STATE_SEED.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("STATE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("STATE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// randomChanges returns changes to the containers was, and those that there are after them.
func randomChanges(r *rand.Rand, was map[string]bool) (changes []Change, is map[string]bool) {
	is = maps.Clone(was)
	for range 1 + r.IntN(4) {
		id := fmt.Sprint("c", r.IntN(30))
		c, st := someContainer(id)
		switch {
		case !is[id]:
			c.Config.Args = []string{string(bytes.Repeat([]byte("a"), r.IntN(6000)))}
			changes, is[id] = append(changes, NewContainer(c, st)), true
		case r.IntN(2) == 0:
			changes = append(changes, DeleteContainer(id))
			delete(is, id)
		default:
			changes = append(changes, ContainerStatus(id, st))
		}
	}
	return changes, is
}

// files are what the disk has of a store.
type files struct{ db, journal []byte }

func disk(t *testing.T, s *Store) files {
	t.Helper()
	return files{read(t, s.path), read(t, filepath.Join(filepath.Dir(s.path), "berth.journal"))}
}

// image is what a crash leaves.
type image struct {
	files
	undone, whole bool // the commit must not be there; must be there
}

// crashes are images that a crash can leave between before and after.
func crashes(r *rand.Rand, before, after files) map[string]image {
	all := map[string]image{
		"nothing written":    {files: before, undone: true},
		"everything written": {files: after, whole: true},
	}
	if !bytes.Equal(before.db, after.db) {
		databaseCrashes(r, before, after, all)
	}
	if !bytes.Equal(before.journal, after.journal) {
		journalCrashes(r, before, after, all)
	}
	return all
}

// journalCrashes adds what there is when some sectors of the write to the journal are on the disk.
func journalCrashes(r *rand.Rand, before, after files, all map[string]image) {
	const sector = 512
	var changed []int
	for at := 0; at < len(after.journal); at += sector {
		if !bytes.Equal(before.journal[at:at+sector], after.journal[at:at+sector]) {
			changed = append(changed, at)
		}
	}
	add := func(name string, sectors []int) {
		file := bytes.Clone(before.journal)
		for _, at := range sectors {
			copy(file[at:at+sector], after.journal[at:at+sector])
		}
		// A record is whole without the zeros that follow it.
		all[name] = image{files: files{before.db, file}, whole: len(sectors) == len(changed)}
	}
	for _, k := range []int{0, r.IntN(len(changed)), len(changed) - 1} {
		add(fmt.Sprintf("the first %d of %d sectors of the journal", k+1, len(changed)), changed[:k+1])
		add(fmt.Sprintf("the last %d of %d sectors of the journal", len(changed)-k, len(changed)), changed[k:])
		some := slices.Clone(changed)
		r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		add(fmt.Sprintf("any %d of %d sectors of the journal", k+1, len(changed)), some[:k+1])
	}
}

// databaseCrashes adds what there is when a transaction of bbolt's is cut off.
func databaseCrashes(r *rand.Rand, before, after files, all map[string]image) {
	page := os.Getpagesize()
	grown := make([]byte, max(len(before.db), len(after.db)))
	copy(grown, before.db)
	var pages []int
	meta := -1
	for at := 0; at < len(after.db); at += page {
		if bytes.Equal(grown[at:at+page], after.db[at:at+page]) {
			continue
		}
		if at < 2*page {
			meta = at
		} else {
			pages = append(pages, at)
		}
	}
	r.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	add := func(name string, db []byte, undone bool) {
		all[name] = image{files: files{db, before.journal}, undone: undone}
	}
	file := grown
	for k, at := range pages {
		torn := bytes.Clone(file)
		n := r.IntN(page)
		copy(torn[at:at+n], after.db[at:at+n])
		add(fmt.Sprintf("page %d of %d torn", k, len(pages)), torn, true)
		file = slices.Clone(file)
		copy(file[at:at+page], after.db[at:at+page])
		add(fmt.Sprintf("%d of %d pages", k+1, len(pages)), file, true)
	}
	for _, n := range []int{1, 8, 16 + r.IntN(64), 512} { // a meta has less than 100 bytes
		torn := bytes.Clone(file)
		copy(torn[meta:meta+n], after.db[meta:meta+n])
		add(fmt.Sprintf("%d bytes of the meta page", n), torn, false)
	}
}

// reopen is what a berth that starts with the files has: the IDs of the containers.
func reopen(t *testing.T, dir string, f files) map[string]bool {
	t.Helper()
	for name, b := range map[string][]byte{"berth.db": f.db, "berth.journal": f.journal} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(b) // in place, which ext4 does not bring to the disk when f is closed
		if err := errors.Join(err, f.Truncate(int64(len(b))), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.db.db.NoSync = true // these files crash no more
	return containers(t, s)
}

// containers is the IDs of the containers. All are whole.
func containers(t *testing.T, s *Store) map[string]bool {
	t.Helper()
	all := load(t, s)
	if len(all.Damaged)+len(all.Orphans) != 0 {
		t.Fatalf("%v, %v", all.Damaged, all.Orphans)
	}
	ids := map[string]bool{}
	for _, c := range all.Containers {
		ids[c.ID] = true
		if c.Status.Exit.Code != 42 {
			t.Fatalf("%s: half a record", c.ID)
		}
	}
	return ids
}
