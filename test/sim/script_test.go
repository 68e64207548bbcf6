// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// orders is how many orders each script is played in.
const orders = 10

// TestScripts plays every story under testdata.
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
			for seed := range uint64(orders) {
				r, _ := played(t, seed+1, func(_ *testing.T, s *Story) error { return s.Play(strings.NewReader(string(script))) })
				if r != "" {
					t.Fatalf("in the order of seed %d: %s", seed+1, r)
				}
			}
		})
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
