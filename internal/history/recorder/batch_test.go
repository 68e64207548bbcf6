// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
)

// Everything is returned, once and in its order, however much it is: more entries than a batch has,
// and more bytes.
func TestBatchesHaveEverythingOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		entries int
		text    string
	}{
		"entries": {2*batchRecords + 7, "short"},
		"bytes":   {450, strings.Repeat("x", 12<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, stop := start(t, Config{Dir: t.TempDir()})
				defer stop()
				began := r.cfg.Clock.Now()
				want := 0
				for i := range tt.entries {
					id := fmt.Sprintf("pod%d", i/500) // of one there is a bound to what is kept
					if i%500 == 0 {
						r.add(id, event.SandboxReady{Names: pod(id)})
					} else {
						r.add(id, event.ImageNotPulled{Image: fmt.Sprint(i), Err: tt.text})
					}
					want++
					if i%1000 == 0 {
						time.Sleep(time.Second)
					}
				}
				time.Sleep(time.Second)
				var got []Record
				batches := 0
				for b := (Batch{More: true}); b.More; batches++ {
					b = r.Batch(t.Context(), b.Last, began)
					if b.Missing != "" {
						t.Fatal(b.Missing)
					}
					got = append(got, b.Records...)
				}
				if batches < 2 {
					t.Errorf("%d batches", batches)
				}
				ours := 0
				for i, rec := range got {
					if i > 0 && rec.Number <= got[i-1].Number {
						t.Fatalf("%d comes after %d", rec.Number, got[i-1].Number)
					}
					var e event.Entry
					if err := json.Unmarshal(rec.Entry, &e); err != nil {
						t.Fatal(err)
					}
					if e.ID == "" {
						continue // about the recorder itself
					}
					ours++
					if rec.Of.Pod != e.ID {
						t.Fatalf("entry %d of %s has the names %+v", rec.Number, e.ID, rec.Of)
					}
				}
				if ours != want {
					t.Errorf("%d entries, want %d", ours, want)
				}
			})
		})
	}
}

// What is older than asked for is left out, and so is what was asked for before.
func TestABatchBeginsWhereItShould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop := start(t, Config{Dir: t.TempDir()})
		defer stop()
		r.add("a", event.SandboxReady{Names: pod("a")})
		time.Sleep(time.Hour)
		since := r.cfg.Clock.Now()
		r.add("a", event.ExitFound{})
		b := r.Batch(t.Context(), 0, since)
		if len(b.Records) != 1 || !strings.Contains(string(b.Records[0].Entry), "ExitFound") || b.More {
			t.Errorf("%+v", b)
		}
		if next := r.Batch(t.Context(), b.Last, since); len(next.Records) != 0 || next.Last != b.Last || next.More {
			t.Errorf("%+v", next)
		}
	})
}

// A disk that does not answer holds up no batch: it has what is in memory, says that the rest is
// missing, and does not ask to be asked again.
func TestABatchSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop := start(t, Config{Dir: t.TempDir()})
		defer stop()
		for i := range 3 * keepItems {
			r.add(fmt.Sprint("pod", i/100), event.ImageNotPulled{Image: fmt.Sprint(i), Err: errors.ErrUnsupported.Error()})
		}
		time.Sleep(time.Minute)
		if !r.reading.TryAcquire(maxReading) { // answers that wait for ever
			t.Fatal("an answer still waits for the disk")
		}
		b := r.Batch(t.Context(), 0, clock.Instant{})
		if b.Missing == "" || b.More || len(b.Records) < 1000 {
			t.Errorf("%d records, more: %v, missing: %q", len(b.Records), b.More, b.Missing)
		}
	})
}
