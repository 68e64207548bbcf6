// SPDX-License-Identifier: Apache-2.0

package event

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var writeRelease = flag.String("write", "", "write testdata/releases of a version, such as 0.1.0, before it is released")

// Entries of the timeline that any released version wrote are read, with each value that they have.
// A release adds a file with an entry of each kind, with every field set, by -write; later it is
// never written again.
func TestTheEntriesOfEachReleaseAreRead(t *testing.T) {
	if *writeRelease != "" {
		var b bytes.Buffer
		for _, e := range filled(t) {
			line, err := json.Marshal(Entry{At: instant, ID: "c1", Event: e})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
		if err := os.WriteFile("testdata/releases/"+*writeRelease+".jsonl", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("testdata/releases/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var n Entry
			if err := json.Unmarshal([]byte(line), &n); err != nil {
				t.Errorf("%s: %s: %v", file, line, err)
				continue
			}
			again, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			var was, is map[string]any
			if json.Unmarshal([]byte(line), &was) != nil || json.Unmarshal(again, &is) != nil || !within(was, is) {
				t.Errorf("%s: %s is read as %s", file, line, again)
			}
		}
	}
}

// within reports whether everything that was there is there. A later version may have more fields.
func within(was, is any) bool {
	a, ok := was.(map[string]any)
	if !ok {
		return reflect.DeepEqual(was, is)
	}
	b, ok := is.(map[string]any)
	for k, v := range a {
		if !ok || !within(v, b[k]) {
			return false
		}
	}
	return ok
}
