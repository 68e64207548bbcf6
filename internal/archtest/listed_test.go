// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// unlisted are the methods of the ports of internal/heart/pod that take a context and are not in
// the list of what is under way, each with the reason.
var unlisted = map[string]string{
	"Inventory": "it concerns no unit; a comparison has its own deadline",
	"TaskState": "a question for a state, which the caller's error names",
	"WaitTask":  "it waits for the end of a container, as long as that runs",
	"Wait":      "the same, of a sandbox",
	"Status":    "a question for a state",
	"KillAll":   "it kills by the kernel, and waits for the processes that the told end names",
	"RemoveAll": "the same",
	"Pinned":    "it reads a directory of berth's own",
	"Run":       "the pump of a container's output, which runs as long as the container",
	"Drain":     "the caller's deadline is a quarter of a second",
	"Flush":     "the same",
	"Reopen":    "the call ReopenContainerLog is listed",
	"JoinGroup": "it takes a second at most",
	"Created":   "it must not block",
	"Started":   "it must not block",
	"ShimDied":  "it looks over the node for two seconds at most, and no call waits for it",
}

// PROPERTIES 65: nothing outside is asked beside the list of what is under way. Each method of a
// port that can take time is wrapped by listed.go.
func TestPortsThatTakeTimeAreListed(t *testing.T) {
	ports, listed := map[string]ast.Node{}, map[string]bool{}
	for _, f := range rooms(t)["internal/heart/pod"] {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.InterfaceType:
				if f.path != "internal/heart/pod/ports.go" && f.path != "internal/heart/pod/hooks.go" {
					return true
				}
				for _, m := range n.Methods.List {
					if fn, ok := m.Type.(*ast.FuncType); ok && len(m.Names) == 1 && takesContext(fn) {
						ports[m.Names[0].Name] = m
					}
				}
			case *ast.FuncDecl:
				if f.path == "internal/heart/pod/listed.go" && n.Recv != nil {
					listed[n.Name.Name] = true
				}
			}
			return true
		})
	}
	if len(ports) < 40 {
		t.Fatalf("only %d methods found: the test looks in the wrong place", len(ports))
	}
	unused := maps.Clone(unlisted)
	for name, m := range ports {
		if !listed[name] && unlisted[name] == "" {
			t.Errorf("%s: %s takes time and is not in the list of what is under way: wrap it in listed.go", at(m), name)
		}
		if !listed[name] {
			delete(unused, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		t.Errorf("no port has a method %s that is not listed", name)
	}
}

func takesContext(fn *ast.FuncType) bool {
	if len(fn.Params.List) == 0 {
		return false
	}
	sel, ok := fn.Params.List[0].Type.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Context"
}
