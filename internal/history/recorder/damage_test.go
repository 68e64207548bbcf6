// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/event"
	"berth/test/durabletest"
)

// PROPERTIES 42: a bit of a segment changes, or a segment is cut. berth starts, no entry is another
// one, all that is whole is read, and one entry says that a file is damaged. BERTH_PICK=all tries a
// thousand of each.
func TestADamagedHistoryIsReadRoundTheDamage(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := durabletest.Rounds(20)
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir, MaxBytes: segments * minSegment})
		for i := range 600 {
			r.add(fmt.Sprint("c", i%7), event.ExitCorrected{Exit: event.Exit{Code: uint32(i)}})
			time.Sleep(time.Second)
		}
		kill()
		_, said := readFrom(t, dir)
		files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
		if err != nil || len(files) < 2 || len(said) < 600 {
			t.Fatal(files, len(said), err)
		}
		for i := range 2 * rounds {
			hit := files[random.IntN(len(files))]
			where, most := "", 1
			broken := t.TempDir()
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case f != hit:
				case i%2 == 0:
					bit := random.IntN(8 * len(b))
					where = fmt.Sprintf("bit %d of %s", bit, filepath.Base(f))
					b[bit/8] ^= 1 << (bit % 8)
				default:
					at := random.IntN(len(b))
					where = fmt.Sprintf("%s cut at %d", filepath.Base(f), at)
					most = bytes.Count(b[at:], []byte(magic)) + 1
					b = b[:at]
				}
				if err := os.WriteFile(filepath.Join(broken, filepath.Base(f)), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			damaged, got := readFrom(t, broken)
			lost := 0
			for n, e := range said {
				switch {
				case got[n] == "":
					lost++
				case got[n] != e:
					t.Errorf("%s: %d was %q, and is %q", where, n, e, got[n])
				}
			}
			if lost > most || damaged > 1 || lost > 0 && damaged == 0 && i%2 == 0 {
				t.Errorf("%s: %d entries are lost, of %d at most, and %d files are said to be damaged", where, lost, most, damaged)
			}
		}
	})
}

// readFrom starts a recorder on a directory, and returns the entries by their numbers and how many
// files it says are damaged.
func readFrom(t *testing.T, dir string) (damaged int, entries map[uint64]string) {
	t.Helper()
	r, kill := start(t, Config{Dir: dir})
	synctest.Wait()
	a, err := r.Find(t.Context(), Query{})
	if err != nil {
		t.Fatal(err)
	}
	kill()
	entries = map[uint64]string{}
	for _, e := range a.Entries {
		switch e.Kind {
		case "HistoryUnread":
			damaged++
		case "BerthStarted":
		default:
			entries[e.Number] = fmt.Sprint(e.At, e.ID, e.What, e.Detail)
		}
	}
	return damaged, entries
}
