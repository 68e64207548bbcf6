// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// id is the key of the tests.
type id string

func (i id) String() string { return string(i) }

// TestStories plays the scripts in testdata. A script is a list of commands; what the machine
// answers stands below each command, after "> ". -update rewrites the answers.
//
//	offer ID ITEM     poke ID     ready     advance SPAN     show
//	done ID           fail ID     fail ID within SPAN
//	wait ID           unwait ID
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(b))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(b) {
				t.Fatalf("the machine answers otherwise; got:\n%s", got)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	t.Helper()
	m := NewMachine[id, string](Config{MaxQueue: 4})
	now := time.Unix(0, 0).UTC()
	flying := map[id]Attempt[id, string]{}
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		fmt.Fprintln(&out, line)
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		say := func(format string, args ...any) { fmt.Fprintf(&out, "> "+format+"\n", args...) }
		span := func(s string) time.Duration {
			d, err := time.ParseDuration(s)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		end := func(r Result) {
			key := id(f[1])
			if err := m.Done(now, flying[key], r); err != nil {
				say("%v", err)
			}
			delete(flying, key)
		}
		switch f[0] {
		case "offer":
			if !m.Offer(now, id(f[1]), f[2]) {
				say("full")
			}
		case "poke":
			m.Poke(now, id(f[1]))
		case "wait":
			m.Wait(now, id(f[1]))
		case "unwait":
			m.Unwait(id(f[1]))
		case "ready":
			for {
				a, ok := m.Ready(now)
				if !ok {
					break
				}
				flying[a.Key] = a
				say("%s: %s, try %d, for %s", a.Key, a.Item, a.N, a.Deadline.Sub(now))
			}
			if w, ok := m.NextWake(); ok {
				say("next in %s", w.Sub(now))
			} else {
				say("next never")
			}
		case "done":
			end(Done())
		case "fail":
			if len(f) > 3 && f[2] == "within" {
				end(RetryWithin(errors.New("no"), span(f[3])))
			} else {
				end(Retry(errors.New("no")))
			}
		case "advance":
			now = now.Add(span(f[1]))
		case "show":
			for _, l := range m.Snapshot(now) {
				say("%s %s, %d waiting, try %d, %s %s", l.ID, l.State, l.Waiting, l.Tries, l.Head, l.Err)
			}
			if m.Len() == 0 {
				say("all idle")
			}
		default:
			t.Fatalf("unknown command %q", line)
		}
	}
	return out.String()
}
