// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"testing"
)

// An event that nobody makes is a promise that nobody keeps. That each is in the list of all events
// is a test of package event.
func TestEveryEventIsMadeSomewhere(t *testing.T) {
	made := map[string]bool{}
	events := map[string]ast.Node{}
	for _, f := range source(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if f.room == "internal/base/event" && n.Recv != nil && n.Name.Name == "line" {
					events[n.Recv.List[0].Type.(*ast.Ident).Name] = n
				}
			case *ast.CompositeLit:
				if s, ok := n.Type.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "event" {
						made[s.Sel.Name] = true
					}
				}
			}
			return true
		})
	}
	if len(events) < 50 {
		t.Fatalf("only %d events found: the test looks in the wrong place", len(events))
	}
	for name, n := range events {
		if !made[name] {
			t.Errorf("%s: nobody makes an event.%s", at(n), name)
		}
	}
}
