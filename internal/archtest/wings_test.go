// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// wings are the wings of berth, the lowest first: each imports only those before it.
var wings = []string{"base", "host", "heart", "images", "engine", "history", "serve", "daemon", "tools"}

// beside are pairs of wings that stand beside each other on the map: neither imports the other.
var beside = [][2]string{{"serve", "engine"}, {"history", "engine"}, {"heart", "images"}, {"host", "images"}}

// mostArrows is how many pairs of wings of the runtime there may be of which one imports the other.
const mostArrows = 25

// wingOf returns the wing that a package of the module lies in; "" if it lies in none.
func wingOf(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, module+"/"), "internal/")
	first, _, _ := strings.Cut(path, "/")
	if slices.Contains(wings, first) {
		return first
	}
	return ""
}

func TestAWingImportsOnlyTheWingsBelow(t *testing.T) {
	arrows := map[[2]string]string{} // with a file that has the import
	for _, f := range source(t) {
		from := wingOf(f.room)
		if f.test || from == "" {
			continue
		}
		for _, p := range f.imports() {
			to := wingOf(p)
			if to == "" || to == from || !strings.HasPrefix(p, module+"/") {
				continue
			}
			if slices.Index(wings, to) > slices.Index(wings, from) {
				t.Errorf("%s imports %s: the wing %s lies below %s; state an interface in %s, or move the values that both need below", f.path, p, from, to, from)
			}
			arrows[[2]string{from, to}] = f.path
		}
	}
	for _, pair := range beside {
		for _, arrow := range [][2]string{pair, {pair[1], pair[0]}} {
			if path := arrows[arrow]; path != "" {
				t.Errorf("%s imports the wing %s, which stands beside %s on the map in ARCHITECTURE.md: state an interface, or draw the map again", path, arrow[1], arrow[0])
			}
		}
	}
	for arrow := range arrows {
		if arrow[0] == "tools" {
			delete(arrows, arrow)
		}
	}
	if len(arrows) < 15 {
		t.Fatalf("only %d arrows found: the test looks in the wrong place", len(arrows))
	}
	if len(arrows) > mostArrows {
		t.Errorf("%d wings of the runtime import another one, and %d is the most: %v", len(arrows), mostArrows, arrows)
	}
}

// Lines are a budget: a change that needs more of them says so where a reader of the map sees it.
func TestAWingStaysWithinItsLines(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| (\w+) \|.*\| ([\d,]+) \|$`)
	_, section, _ := strings.Cut(documents(t)["ARCHITECTURE.md"], "\n## The wings\n")
	section, _, _ = strings.Cut(section, "\n## ")
	most := map[string]int{}
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		most[m[1]], _ = strconv.Atoi(strings.ReplaceAll(m[2], ",", ""))
	}
	have := map[string]int{}
	for _, f := range source(t) {
		if w := wingOf(f.room); w != "" && !f.test && !ast.IsGenerated(f.ast) {
			have[w] += fset.File(f.ast.Pos()).LineCount()
		}
	}
	for _, w := range wings {
		if have[w] > most[w] {
			t.Errorf("the wing %s has %d lines and a budget of %d: take lines away, or change the table in ARCHITECTURE.md "+
				"and say in the commit what the lines are worth", w, have[w], most[w])
		}
	}
	if len(most) != len(wings) {
		t.Errorf("the table of wings in ARCHITECTURE.md has %d rows for %d wings", len(most), len(wings))
	}
	t.Log(have)
}
