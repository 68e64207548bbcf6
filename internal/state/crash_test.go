// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
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
// it.
//
// bbolt writes the changed pages in any order, syncs, writes one of the two meta pages, and syncs.
// So the states that a crash can leave are: the file before with some of the changed pages, one of
// them perhaps half written; and with all of them and a part of the meta page.
func TestACrashAtAnyWriteOfACommitLeavesItWholeOrUndone(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("STATE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("STATE_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir, scratch := t.TempDir(), t.TempDir()
	s := open(t, dir)
	// bbolt writes with pwrite(2) and reads through a mapping of the same file, so a copy of the
	// file between two commits is what the disk has then.
	before, was := read(t, s.path), map[string]bool{}
	for i := range 40 {
		var changes []Change
		is := maps.Clone(was)
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
		if err := s.Commit(changes...); err != nil {
			t.Fatal(err)
		}
		after := read(t, s.path)
		for name, img := range crashes(r, before, after) {
			got := reopen(t, scratch, img.file)
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

// image is a file as a crash leaves it.
type image struct {
	file          []byte
	undone, whole bool // the commit must not be there; must be there
}

// crashes are files that a crash can leave between before and after.
func crashes(r *rand.Rand, before, after []byte) map[string]image {
	page := os.Getpagesize()
	grown := make([]byte, max(len(before), len(after)))
	copy(grown, before)
	var pages []int
	meta := -1
	for at := 0; at < len(after); at += page {
		if bytes.Equal(grown[at:at+page], after[at:at+page]) {
			continue
		}
		if at < 2*page {
			meta = at
		} else {
			pages = append(pages, at)
		}
	}
	r.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	all := map[string]image{"nothing written": {file: before, undone: true}}
	file := grown
	for k, at := range pages {
		torn := bytes.Clone(file)
		n := r.IntN(page)
		copy(torn[at:at+n], after[at:at+n])
		all[fmt.Sprintf("page %d of %d torn", k, len(pages))] = image{file: torn, undone: true}
		file = slices.Clone(file)
		copy(file[at:at+page], after[at:at+page])
		all[fmt.Sprintf("%d of %d pages", k+1, len(pages))] = image{file: file, undone: true}
	}
	for _, n := range []int{1, 8, 16 + r.IntN(64), 512} { // a meta has less than 100 bytes
		torn := bytes.Clone(file)
		copy(torn[meta:meta+n], after[meta:meta+n])
		all[fmt.Sprintf("%d bytes of the meta page", n)] = image{file: torn}
	}
	all["everything written"] = image{file: after, whole: true}
	return all
}

// reopen is what a berth that starts with the file has: the IDs of the containers.
func reopen(t *testing.T, dir string, file []byte) map[string]bool {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "berth.db"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
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
