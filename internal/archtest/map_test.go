// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mapped are the paths that the map in ARCHITECTURE.md names. A line of the map is indented by two
// spaces more than that of the directory it lies in; it names one directory, or files.
func mapped(t *testing.T) []string {
	t.Helper()
	var found, parents []string
	for line := range strings.Lines(documents(t)["ARCHITECTURE.md"]) {
		words := strings.Fields(line)
		depth := (len(line) - len(strings.TrimLeft(line, " ")) - 4) / 2
		if len(words) == 0 || depth < 0 {
			parents = nil
			continue
		}
		switch {
		case strings.HasSuffix(words[0], ".go"):
			for _, w := range words {
				if strings.HasSuffix(w, ".go") {
					found = append(found, strings.Join(parents[:min(depth, len(parents))], "")+w)
				}
			}
		case strings.HasSuffix(words[0], "/") && depth <= len(parents):
			parents = append(parents[:depth:depth], words[0])
			found = append(found, strings.TrimSuffix(strings.Join(parents, ""), "/"))
		}
	}
	return found
}

// A person who looks for something finds it in the map, which names every room, every directory of
// tests and of programs, and every file of the largest room but doc.go.
func TestTheMapNamesEveryRoom(t *testing.T) {
	var there []string
	for _, pattern := range []string{"cmd/*", "internal/*", "test/*", "internal/pod/*.go"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			base := filepath.Base(path)
			if info.IsDir() || strings.HasSuffix(base, ".go") && !strings.HasSuffix(base, "_test.go") && base != "doc.go" {
				there = append(there, rel)
			}
		}
	}
	names := mapped(t)
	for _, path := range there {
		if !slices.Contains(names, path) {
			t.Errorf("the map in ARCHITECTURE.md does not name %s", path)
		}
	}
	for _, path := range names {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("the map in ARCHITECTURE.md: %v", err)
		}
	}
}
