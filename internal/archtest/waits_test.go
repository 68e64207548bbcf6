// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// boundless are the functions of internal/heart/pod that wait without a branch beside what they
// wait for, each with what bounds that.
var boundless = map[string]string{
	"Run":          "the controller ends when its parts have, which its context ends",
	"unlock":       "a gate that is held is never empty",
	"close":        "what was spawned ends with the life of the controller",
	"compare":      "each unit is asked with the context of the comparison",
	"removePod":    "each removal has the context of the call",
	"makeParts":    "the plug-ins and the shim are asked with the context of the call",
	"drain":        "a drain has its timeout",
	"makeHostPath": "the event was begun, and takes no time",
	"endAll":       "each stop has the context of the shutdown, which has a deadline",
	"stopPod":      "each stop has the context of the call",
	"release":      "what goes on beside it has the context of the attempt",
	"changeAfter":  "the commit of a lane or an operation before it; a call has changeFor",
	"erase":        "the same",
}

// PROPERTIES 51: what waits for ever waits alone. A receive stands in a select with another case,
// and neither Wait without a context nor a lock without one is called, but where it is said why
// that ends.
func TestEveryWaitOfPodsHasAnotherBranch(t *testing.T) {
	unused := maps.Clone(boundless)
	for _, f := range rooms(t)["internal/heart/pod"] {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, n := range loneWaits(fn) {
				if boundless[fn.Name.Name] == "" {
					t.Errorf("%s: %s waits for one thing alone, for ever if that does not come: add a branch, or say here why it comes", at(n), fn.Name.Name)
				}
				delete(unused, fn.Name.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		t.Errorf("%s of internal/heart/pod does not wait alone", name)
	}
}

// loneWaits returns the receives and calls of a function that nothing but what they wait for ends.
func loneWaits(fn *ast.FuncDecl) (found []ast.Node) {
	chosen := map[ast.Node]bool{} // receives that stand in a select with another case
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectStmt:
			for _, c := range n.Body.List {
				if comm := c.(*ast.CommClause).Comm; comm != nil && len(n.Body.List) > 1 {
					ast.Inspect(comm, func(n ast.Node) bool { chosen[n] = true; return true })
				}
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && !chosen[n] {
				found = append(found, n)
			}
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			if sel.Sel.Name == "Wait" && len(n.Args) == 0 {
				found = append(found, n)
			}
			if sel.Sel.Name == "lock" && len(n.Args) == 1 {
				if pkg, name := calls(n.Args[0]); pkg == "context" && name == "Background" {
					found = append(found, n)
				}
			}
		}
		return true
	})
	return found
}
