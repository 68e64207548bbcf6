// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// provers returns the tests that name each promise, as room.Test.
func provers(t *testing.T) map[int][]string {
	t.Helper()
	by := map[int][]string{}
	for _, f := range source(t) {
		if !f.test || inside(f.room, "internal/archtest") {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			from := fn.Pos()
			if fn.Doc != nil {
				from = fn.Doc.Pos()
			}
			for _, c := range f.ast.Comments {
				if c.Pos() < from || c.End() > fn.End() {
					continue
				}
				for _, m := range named.FindAllStringSubmatch(c.Text(), -1) {
					for _, s := range regexp.MustCompile(`\d+`).FindAllString(m[1]+m[2], -1) {
						n, _ := strconv.Atoi(s)
						by[n] = append(by[n], filepath.Base(f.room)+"."+fn.Name.Name)
					}
				}
			}
		}
	}
	return by
}

// docs/PROPERTIES.md lists for each promise tests that name it. The list may be shorter than what
// there is.
func TestPromisesListTheirTests(t *testing.T) {
	text := documents(t)["docs/PROPERTIES.md"]
	by, listed := provers(t), map[int]int{}
	_, list, ok := strings.Cut(text, "\n## The tests of each promise\n")
	if !ok {
		t.Fatal("docs/PROPERTIES.md has no list of tests")
	}
	list, _, _ = strings.Cut(list, "\n## ")
	n := 0
	for _, line := range strings.Split(list, "\n") {
		if m := regexp.MustCompile(`^- (\d+): `).FindStringSubmatch(line); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		for _, m := range regexp.MustCompile("`([a-z0-9]+\\.(?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(line, -1) {
			listed[n]++
			if !slices.Contains(by[n], m[1]) {
				t.Errorf("docs/PROPERTIES.md says that %s proves promise %d: it is not there, or does not name PROPERTIES %d", m[1], n, n)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| \*\*`).FindAllStringSubmatch(text, -1) {
		if n, _ := strconv.Atoi(m[1]); listed[n] == 0 {
			t.Errorf("docs/PROPERTIES.md lists no test of promise %d", n)
		}
	}
}
