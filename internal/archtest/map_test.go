// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mapped returns the directories that the map in ARCHITECTURE.md names. A line of the map is
// indented by two spaces more than that of the directory it lies in.
func mapped(t *testing.T) []string {
	t.Helper()
	var found, parents []string
	for line := range strings.Lines(documents(t)["ARCHITECTURE.md"]) {
		words := strings.Fields(line)
		depth := (len(line) - len(strings.TrimLeft(line, " ")) - 4) / 2
		switch {
		case len(words) == 0 || depth < 0:
			parents = nil
		case strings.HasSuffix(words[0], "/") && depth <= len(parents):
			parents = append(parents[:depth:depth], words[0])
			found = append(found, strings.TrimSuffix(strings.Join(parents, ""), "/"))
		}
	}
	return found
}

// The map names every room, and every directory of tests and of programs. The files of a room are in
// the room's doc.go, where a change of one is seen.
func TestTheMapNamesEveryRoom(t *testing.T) {
	var there []string
	for room := range rooms(t) {
		there = append(there, room)
	}
	for _, pattern := range []string{"cmd/*", "test/*"} {
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
			if info.IsDir() {
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

// The files of a room are explained in its doc.go, where one that has moved would go unnoticed.
func TestADocNamesFilesThatExist(t *testing.T) {
	named := 0
	for room := range rooms(t) {
		doc := filepath.Join(root, room, "doc.go")
		if _, err := os.Stat(doc); err != nil {
			continue
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`[\w./]+\.go\b`).FindAllString(string(text), -1) {
			named++
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), name)); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
	if named < 30 {
		t.Fatalf("only %d files are named", named)
	}
}
