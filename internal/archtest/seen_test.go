// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tests returns every test of the repository, as room.Test.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, f := range source(t) {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && f.test && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				all[filepath.Base(f.room)+"."+fn.Name.Name] = true
			}
		}
	}
	return all
}

// Each row of docs/seen.md has a symptom, where it was reported, what berth does and a test that
// exists.
func TestWhatWasSeenElsewhereIsProvenByATest(t *testing.T) {
	report := regexp.MustCompile(`^(?:\[[a-z0-9-]+#(\d+)\]\(https://github\.com/[\w.-]+/[\w.-]+/issues/(\d+)\)|CVE-\d{4}-\d+)$`)
	all, rows := tests(t), 0
	for line := range strings.Lines(documents(t)["docs/seen.md"]) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| symptom |") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 {
			t.Errorf("the row has %d cells: %s", len(cells), line)
			continue
		}
		for _, r := range strings.Fields(cells[1]) {
			if m := report.FindStringSubmatch(r); len(m) != 3 || m[1] != m[2] {
				t.Errorf("%s is not a report", r)
			}
		}
		if name := strings.Trim(cells[3], "` "); !all[name] {
			t.Errorf("there is no test %s", name)
		}
	}
	if rows < 25 {
		t.Errorf("docs/seen.md has %d rows", rows)
	}
}
