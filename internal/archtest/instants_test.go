// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// kept are the rooms whose values are kept: in records, in entries of the history, or in facts that
// become a part of either.
var kept = []string{
	"internal/base/exit", "internal/base/event", "internal/heart/state",
	"internal/history/recorder", "internal/history/observe", "internal/history/why",
}

// uses calls each with every use of a name of a package, such as time.Now.
func uses(f file, pkg string, each func(n ast.Node, name string)) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
				each(n, s.Sel.Name)
			}
		}
		return true
	})
}

// PROPERTIES 70: an instant that is kept is a clock.Instant. Wall time, which is set, is neither
// asked for where instants are kept, nor written into a record or an entry.
func TestInstantsThatAreKeptAreNotWallTime(t *testing.T) {
	looked := 0
	for _, f := range source(t) {
		if f.test || !inside(f.room, kept...) {
			continue
		}
		looked++
		if f.room != "internal/heart/state" { // which waits for disks, in memory
			uses(f, "time", func(n ast.Node, name string) {
				if slices.Contains([]string{"Now", "Since", "Until"}, name) {
					t.Errorf("%s: time.%s in %s, where instants are kept: use a clock.Clock", at(n), name, f.room)
				}
			})
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == "ClockSet" {
				return false // which is about wall time
			}
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil || !strings.Contains(field.Tag.Value, "json:") {
				return true
			}
			if s, ok := field.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Time" {
				t.Errorf("%s: a time.Time is written: make it a clock.Instant", at(n))
			}
			return true
		})
	}
	if looked < 40 {
		t.Fatalf("only %d files found: the test looks in the wrong place", looked)
	}
}

// PROPERTIES 70: instants are made in one place, the room clock, and so is wall time from them. A
// stamp is neither: only texts for people, and programs that get wall time by the API in its place,
// read one, and only tests make an instant of one.
func TestInstantsAreMadeByTheClockAlone(t *testing.T) {
	readers := []string{"internal/base/clock", "internal/base/event", "tools"}
	for _, f := range source(t) {
		if f.test || inside(f.room, "test", "internal/base/clock") {
			continue
		}
		uses(f, "clock", func(n ast.Node, name string) {
			if name == "Stamped" {
				t.Errorf("%s: an instant is made of a stamp: take it from a clock.Clock", at(n))
			}
		})
		if inside(f.room, readers...) || strings.HasSuffix(f.path, "recorder/stored.go") { // of a berth that does not run
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok && len(c.Args) == 0 {
				if s, ok := c.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Stamp" {
					t.Errorf("%s: a stamp is taken for wall time: use Wall of a clock.Clock", at(n))
				}
			}
			return true
		})
	}
}
