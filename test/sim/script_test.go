// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// orders is how many orders each script is played in.
var orders uint64 = 10

// TestScripts plays every story under testdata. What happens in the first order is in the file of
// the same name that ends with .golden.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sim")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".sim"), func(t *testing.T) {
			script, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for seed := range orders {
				var happened string
				r, _ := playedTo(t, Endings[seed%2], seed+1, func(_ *testing.T, s *Story) error {
					err := s.Play(strings.NewReader(string(script)))
					happened = s.transcript.String()
					return err
				})
				if r != "" {
					t.Fatalf("in the order of seed %d: %s", seed+1, r)
				}
				if seed == 0 {
					golden(t, strings.TrimSuffix(f, ".sim")+".golden", happened)
				}
			}
		})
	}
}

// golden compares what happened with a file, or writes the file if -update is given.
func golden(t *testing.T, file, happened string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(happened), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: go test ./test/sim -run Scripts -update writes it", err)
	}
	if happened != string(want) {
		t.Errorf("this happened, which is not what %s says (-update rewrites it):\n%s", file, happened)
	}
}

// A story that is not true fails.
func TestAnUntrueStoryFails(t *testing.T) {
	for _, script := range []string{
		"boot berth\nrun p1\nstart p1/c1\nexpect c1 EXITED 0",
		"boot berth\nrun p1\nstart p1/c1\nexit c1 code=3\nexpect c1 EXITED 4",
		"boot berth\nrun p1\nstart p1/c1\nexit c1 code=3\nexpect-feed c1 STOPPED count=2",
		"boot berth\n! run p1",
		"dance",
	} {
		if r, _ := played(t, 1, func(_ *testing.T, s *Story) error { return s.Play(strings.NewReader(script)) }); r == "" {
			t.Errorf("this was found to be true:\n%s", script)
		}
	}
}
